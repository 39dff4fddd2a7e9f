"""Network faults: a proxy on the loopback that delays, refuses, cuts and loses what passes through it.

    async with open_fault_proxy("http://127.0.0.1:9000") as proxy:
        proxy.plan.append(Cut(method="PUT", target="*/commits/*", nth=1, moment="after"))
        settings = Settings(..., s3=S3Settings(endpoint=proxy.endpoint))

It tests what wrappers of a store cannot: that a *client* keeps its promises when the network fails. It supports as much
of HTTP/1.1 as S3 clients use, and holds each message in memory.
"""

import socket
import struct
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final
from urllib.parse import urlsplit

import anyio
from anyio.abc import SocketAttribute, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from statebackend._tasks import open_tasks
from statebackend.testing.faults import Moment

HOST: Final = "127.0.0.1"
_NO_DELAY: Final = (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
_RESET_ON_CLOSE: Final = (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
_END_OF_HEAD: Final = b"\r\n\r\n"
_HEAD_BYTES_MAX: Final = 64 * 1024
_GONE: Final = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, anyio.IncompleteRead, OSError)


@dataclass(kw_only=True, eq=False)
class HttpFault:
    """Strikes requests with this `method`, or any if `None`, whose target, path and query, matches `target`.

    Of the matching requests it strikes the `nth`, counted from 1; with `times_each` the first that many of each target;
    without both, all.
    """

    method: str | None = None
    target: str = "*"
    header: str | None = None
    """Strikes only requests with this header, in lower case: a conditional PUT has "if-none-match"."""
    nth: int | None = None
    times_each: int | None = None
    moment: Moment = "before"
    """"after": the server has carried out the request, and only its answer meets the fault."""
    struck: int = field(default=0, init=False)
    _matched: Counter[str] = field(default_factory=Counter[str], init=False)

    def strikes(self, method: str, target: str, headers: Mapping[str, str]) -> bool:
        """Count this request if it matches, and return true if it is struck."""
        if self.method not in (None, method) or not fnmatchcase(target, self.target):
            return False
        if self.header is not None and self.header not in headers:
            return False
        self._matched[target] += 1
        strikes = (self.nth is None or self._matched.total() == self.nth) and (
            self.times_each is None or self._matched[target] <= self.times_each
        )
        self.struck += strikes
        return strikes

    async def strike(self, answer: bytes | None) -> bytes | None:
        """Apply this fault: return another answer, or the same one. `CutError` cuts the connection.

        "before" there is no answer yet: it is `None`, and returning `None` sends the request on to the server.
        """
        raise NotImplementedError


class CutError(Exception):
    """The connection is to be cut."""


@dataclass(kw_only=True, eq=False)
class Cut(HttpFault):
    """Resets the connection. "before": the request has arrived, and the server has not seen it."""

    async def strike(self, answer: bytes | None) -> bytes | None:
        raise CutError


@dataclass(kw_only=True, eq=False)
class Answer(HttpFault):
    """Answers in place of the server: with an error in the format of S3 and of Azure, unless `status` is a success."""

    status: int = 503
    code: str = "SlowDown"
    more: str = ""
    """Further headers, each with its end of line."""

    async def strike(self, answer: bytes | None) -> bytes | None:
        body = b""
        if self.status >= 300:
            body = f"<Error><Code>{self.code}</Code><Message>made up by a test</Message></Error>".encode()
        head = (
            f"HTTP/1.1 {self.status} {self.code}\r\nContent-Length: {len(body)}\r\nx-ms-error-code: {self.code}\r\n"
            f"{self.more}\r\n"
        )
        return head.encode() + body


@dataclass(kw_only=True, eq=False)
class Silence(HttpFault):
    """Stays silent until `release()`. `reached` is set when the first request arrives."""

    reached: anyio.Event = field(default_factory=anyio.Event, init=False)
    _released: anyio.Event = field(default_factory=anyio.Event, init=False)

    def release(self) -> None:
        """Let the waiting requests continue, and strike no more."""
        self._released.set()

    async def strike(self, answer: bytes | None) -> bytes | None:
        self.reached.set()
        await self._released.wait()
        return answer


@dataclass(kw_only=True, eq=False)
class FlipBit(HttpFault):
    """Flips a bit of the last byte of the answer."""

    moment: Moment = field(default="after", init=False)

    async def strike(self, answer: bytes | None) -> bytes | None:
        assert answer is not None
        return answer[:-1] + bytes([answer[-1] ^ 1])


@dataclass(frozen=True)
class _Message:
    start: str
    headers: Mapping[str, str]  # by name, in lower case
    content: bytes
    """The message as received, start line and headers included."""


class FaultProxy:
    """Passes requests to a server, with the faults of its `plan` applied. Run by `open_fault_proxy`.

    The test may change the plan at any time. All faults that strike a request apply, in order. `latency_s` is added to
    every request. `requests` lists the method and target of every request so far.
    """

    def __init__(self, host: str, port: int, plan: Iterable[HttpFault], *, latency_s: float) -> None:
        self.endpoint = ""
        self.plan: list[HttpFault] = [*plan]
        self.latency_s = latency_s
        self.requests: list[tuple[str, str]] = []
        self._host = host
        self._port = port

    def count(self, method: str, target: str = "*") -> int:
        """The number of requests with this method whose target matches the pattern."""
        return sum(1 for each, to in self.requests if each == method and fnmatchcase(to, target))

    async def serve(self, client: SocketStream) -> None:
        """Connects one client to the server, until either side ends."""
        client.extra(SocketAttribute.raw_socket).setsockopt(*_NO_DELAY)
        with suppress(*_GONE):
            async with client, await anyio.connect_tcp(self._host, self._port) as server:
                from_client, from_server = BufferedByteReceiveStream(client), BufferedByteReceiveStream(server)
                try:
                    while True:
                        await self._exchange(client, from_client, server, from_server)
                except CutError:
                    client.extra(SocketAttribute.raw_socket).setsockopt(*_RESET_ON_CLOSE)

    async def _exchange(
        self,
        client: SocketStream,
        from_client: BufferedByteReceiveStream,
        server: SocketStream,
        from_server: BufferedByteReceiveStream,
    ) -> None:
        request = await _read(from_client, client)
        method, target, _ = request.start.split(" ")
        self.requests.append((method, target))
        struck = [fault for fault in self.plan if fault.strikes(method, target, request.headers)]
        await anyio.sleep(self.latency_s)
        answer = await _strike(struck, "before", None)
        if answer is None:
            await server.send(request.content)
            answer = (await _read(from_server, None, asked=method)).content
            answer = await _strike(struck, "after", answer)
            assert answer is not None
        if method == "HEAD":  # announces the length of a body that it leaves out
            answer = answer[: answer.index(_END_OF_HEAD) + len(_END_OF_HEAD)]
        await client.send(answer)


@asynccontextmanager
async def open_fault_proxy(
    endpoint: str, plan: Iterable[HttpFault] = (), *, latency_s: float = 0.0
) -> AsyncGenerator[FaultProxy]:
    """Run a proxy for the server at `endpoint`, `http://HOST:PORT`. Leaving closes all connections."""
    url = urlsplit(endpoint)
    assert url.hostname is not None
    assert url.port is not None
    proxy = FaultProxy(url.hostname, url.port, plan, latency_s=latency_s)
    async with await anyio.create_tcp_listener(local_host=HOST) as listener, open_tasks() as tasks:
        proxy.endpoint = f"http://{HOST}:{listener.extra(SocketAttribute.local_port)}"
        tasks.start_soon(listener.serve, proxy.serve)
        yield proxy


async def _strike(faults: Iterable[HttpFault], moment: Moment, answer: bytes | None) -> bytes | None:
    for fault in faults:
        if fault.moment == moment:
            answer = await fault.strike(answer)
    return answer


async def _read(stream: BufferedByteReceiveStream, sender: SocketStream | None, *, asked: str = "") -> _Message:
    """Read one message. `Expect: 100-continue` is answered here and not passed on."""
    head = await stream.receive_until(_END_OF_HEAD, _HEAD_BYTES_MAX)
    start, *lines = head.decode("latin-1").split("\r\n")
    kept = [line for line in lines if not line.lower().startswith("expect:")]
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in kept)}
    if sender is not None and len(kept) < len(lines):
        await sender.send(b"HTTP/1.1 100 Continue\r\n\r\n")
    if sender is None and start.split(" ")[1] == "100":
        return await _read(stream, None, asked=asked)
    content = "\r\n".join([start, *kept]).encode("latin-1") + b"\r\n\r\n"
    if asked == "HEAD" or " 204 " in start or " 304 " in start:
        return _Message(start, headers, content)
    return _Message(start, headers, content + await _body(stream, headers))


async def _body(stream: BufferedByteReceiveStream, headers: Mapping[str, str]) -> bytes:
    if "chunked" not in headers.get("transfer-encoding", ""):
        size = int(headers.get("content-length", "0"))
        return await stream.receive_exactly(size) if size else b""
    body = b""
    while True:
        line = await stream.receive_until(b"\r\n", _HEAD_BYTES_MAX)
        size = int(line.split(b";")[0], 16)
        body += line + b"\r\n" + await stream.receive_exactly(size + 2)
        if size == 0:
            return body
