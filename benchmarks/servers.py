"""A server that speaks S3, as a program on the loopback, for tests, demo and benchmarks: started, awaited, stopped.

MiniStack keeps everything in memory, starts in a third of a second, and keeps put-if-absent under a race; it takes any
credentials. It pins a botocore of its own, so it lives in an environment of its own: `python` is the interpreter there.
"""

import functools
import http.client
import os
import socket
import subprocess
import time
from collections.abc import Generator
from contextlib import AbstractAsyncContextManager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from aiobotocore.session import get_session

HOST: Final = "127.0.0.1"
MINISTACK_PYTHON: Final = "MINISTACK_PYTHON"
"""The environment variable that says where the interpreter is that has MiniStack. `nox` sets it."""
START_TIMEOUT_S: Final = 60.0
STARTS_MAX: Final = 5  # another program may take the port between our looking and the server's


@dataclass(frozen=True)
class Server:
    """Its address and its credentials."""

    name: str
    endpoint: str
    access_key_id: str
    secret_access_key: str = field(repr=False)


class ServerError(Exception):
    """A server does not start. The message has what it printed."""


@contextmanager
def run_ministack(python: str | Path, log: Path) -> Generator[Server]:
    """Run an S3 server without buckets. Its output goes to `log`."""
    for start in range(1, STARTS_MAX + 1):
        port = free_port()
        process = _start_ministack(python, port, log)
        try:
            if answers(process, port, "/_ministack/health"):
                yield Server("MiniStack", f"http://{HOST}:{port}", "anybody", "anything")
                return
        finally:
            process.terminate()
            process.wait()
        if start == STARTS_MAX:
            raise ServerError(f"MiniStack does not start: {log.read_text(errors='replace')[-2000:]}")


async def make_bucket(server: Server, name: str) -> None:
    """A bucket, new or there already."""
    async with open_client(server) as client:
        await client.create_bucket(Bucket=name)


def open_client(server: Server) -> AbstractAsyncContextManager[Any]:
    """A plain client, without our library."""
    client: AbstractAsyncContextManager[Any] = _session().create_client(
        "s3",
        endpoint_url=server.endpoint,
        region_name="us-east-1",
        aws_access_key_id=server.access_key_id,
        aws_secret_access_key=server.secret_access_key,
    )
    return client


@functools.cache
def _session() -> Any:
    """One session of botocore for all clients: it reads and parses files before it can make one."""
    return get_session()


def free_port() -> int:
    """A port that is free at this moment."""
    with socket.create_server((HOST, 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _start_ministack(python: str | Path, port: int, log: Path) -> subprocess.Popen[bytes]:
    variables = {
        "PATH": os.environ.get("PATH", ""),
        "GATEWAY_PORT": str(port),
        "BIND_HOST": HOST,
        "SERVICES": "s3",
        "LOG_LEVEL": "WARNING",
    }
    with log.open("ab") as out:
        return subprocess.Popen([python, "-m", "ministack"], env=variables, stdout=out, stderr=subprocess.STDOUT)


def answers(process: subprocess.Popen[bytes], port: int, path: str, *, status: int = 200) -> bool:
    """Wait until the server answers with that status; false if it has ended instead."""
    end = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < end:
        try:
            with closing(http.client.HTTPConnection(HOST, port, timeout=5)) as connection:
                connection.request("GET", path)
                if connection.getresponse().status == status:
                    return True
        except OSError:
            time.sleep(0.05)
    return False
