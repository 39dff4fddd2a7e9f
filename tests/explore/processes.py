"""A process as a function of the answers that it was given: the library's own coroutines, one request at a time.

Between two requests a process does nothing that others can see, and it is told nothing but answers and the time. So
where it stands is known from what it was answered: a node of a tree. A coroutine is run once for each node, however
many states of the world the node is a part of; where nobody has been before, it is continued, or run again from its
beginning with the answers that lead there.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import suppress
from typing import Any, Final, NamedTuple, Self

import anyio

from statebackend._log import fresh_names
from statebackend.abc import Body, Capability, ObjectInfo
from statebackend.errors import StateBackendError
from statebackend.testing.virtual_time import VirtualTimeLoop

LIVE_MAX: Final = 4_000
"""Coroutines that wait at a node, to be continued there."""


class Request(NamedTuple):
    """What a process asks of the store."""

    operation: str
    key: str
    body: bytes = b""

    @property
    def changes(self) -> bool:
        """True if it can change what the store holds."""
        return self.operation in ("put", "put_if_absent", "delete")


class Answer(NamedTuple):
    """A value, or the error that is raised."""

    value: Any = None
    error: type[Exception] | None = None


class DeadError(StateBackendError):
    """The process is not continued."""


class Process:
    """What a program sees: a store whose requests wait for answers, and a clock that stands still between them."""

    def __init__(self, tree: "Processes", name: str) -> None:
        self.store: Final = _AskingStore(self)
        self.request: Request | None = None
        self.told: list[Hashable] = []
        self.done = False
        self.error: BaseException | None = None
        self.now_s = 0.0
        self.looked_at_clock = False
        """Since its last answer."""
        self._tree = tree
        self._name = name
        self._ids = 0
        self._dead = False
        self._answer: asyncio.Future[Any] | None = None

    def tell(self, event: Hashable) -> None:
        """Say what has come of it, for the model to judge."""
        self.told.append(event)

    def time(self) -> float:
        self.looked_at_clock = True
        return self.now_s

    def monotonic(self) -> float:
        return self.time()

    def new_id(self) -> str:
        """An id that no other process makes, and the same one when it is run again."""
        self._ids += 1
        return f"{self._name}{self._ids:x}".rjust(32, "0")

    async def ask(self, request: Request) -> Any:
        """Wait for the answer to a request."""
        if self._dead:
            raise DeadError("not continued")
        assert self._answer is None, "two requests at a time"
        self.request, self._answer = request, self._tree.loop.create_future()
        self._tree.loop.stop()
        with anyio.CancelScope(shield=True):
            return await self._answer

    def resume(self, answer: Answer) -> None:
        """Deliver an answer, and let it run to its next request."""
        assert self._answer is not None
        waiting, self._answer, self.request, self.told = self._answer, None, None, []
        self.looked_at_clock = False
        if answer.error is None:
            waiting.set_result(answer.value)
        else:
            waiting.set_exception(answer.error("made so by the explorer"))

    def kill(self) -> None:
        """Let it end without another request."""
        self._dead = True
        if self._answer is not None:
            self._answer.set_exception(DeadError("not continued"))

    async def run(self, program: "Program") -> None:
        try:
            await program(self)
        except DeadError:
            pass
        except Exception as error:  # noqa: BLE001  # raised by who runs it
            self.error = error
        self.done = True
        self._tree.loop.stop()


Program = Callable[[Process], Awaitable[None]]


class Node:
    """Where a process stands: its next request, and what it said on the way here from the node before."""

    __slots__ = (
        "before", "children", "done", "edge", "live", "looked_at_clock", "name", "number", "program", "request", "told",
    )  # fmt: skip

    def __init__(self, process: Process, program: Program, name: str, before: "Node | None", edge: Any) -> None:
        self.request: Final = process.request
        self.done: Final = process.done
        self.told: Final = tuple(process.told)
        self.looked_at_clock: Final = process.looked_at_clock
        self.program: Final = program
        self.name: Final = name
        self.before: Final = before
        self.edge: Final = edge
        self.children: Final[dict[tuple[Answer, float | None], Node]] = {}
        self.live: Process | None = None
        self.number = 0


class Processes:
    """All the processes that there can be. A context: it ends those that still wait."""

    def __init__(self) -> None:
        self.loop: Final = VirtualTimeLoop()
        self.nodes: Final[list[Node]] = []
        self.runs = 0
        """How often a coroutine was begun."""
        self._first: dict[tuple[str, float], Node] = {}
        self._waiting: OrderedDict[int, Node] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._uuid = fresh_names.uuid
        fresh_names.uuid = self  # type: ignore[assignment]
        return self

    def __exit__(self, *_: object) -> None:
        for node in self._waiting.values():
            self._end(node)
        fresh_names.uuid = self._uuid
        self.loop.close()

    def uuid4(self) -> Any:
        """In the place of the module of that name: an id of the process that runs now."""
        return _Id(self._running.new_id())

    def first(self, name: str, program: Program, now_s: float) -> Node:
        """A process of that name before its first request."""
        if (node := self._first.get((name, now_s))) is None:
            node = self._first[name, now_s] = self._add(self._begin(name, program, now_s), program, name, None, now_s)
        return node

    def after(self, node: Node, answer: Answer, now_s: float) -> Node:
        """Where the process stands after that answer to its request."""
        found = node.children.get((answer, None)) or node.children.get((answer, now_s))
        if found is None:
            process = self._at(node)
            self._resume(process, (answer, now_s))
            found = self._add(process, node.program, node.name, node, (answer, now_s))
            node.children[answer, now_s if found.looked_at_clock else None] = found  # or at any time
        return found

    def _add(self, process: Process, program: Program, name: str, before: Node | None, edge: Any) -> Node:
        if process.error is not None:
            raise process.error
        node = Node(process, program, name, before, edge)
        node.number = len(self.nodes)
        self.nodes.append(node)
        if not node.done:
            node.live = process
            self._waiting[node.number] = node
            if len(self._waiting) > LIVE_MAX:
                self._end(self._waiting.popitem(last=False)[1])
        return node

    def _at(self, node: Node) -> Process:
        """A process that waits there: the one that does, or another one that is led there."""
        if node.live is not None:
            process, node.live = node.live, None
            del self._waiting[node.number]
            return process
        edges: list[Any] = []
        back: Node = node
        while back.before is not None:
            edges.append(back.edge)
            back = back.before
        process = self._begin(node.name, node.program, back.edge)
        for edge in reversed(edges):
            self._resume(process, edge)
        assert process.request == node.request, "a process does not do the same again"
        return process

    def _begin(self, name: str, program: Program, now_s: float) -> Process:
        self.runs += 1
        process = self._running = Process(self, name)
        process.now_s = now_s
        task = self.loop.create_task(process.run(program))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._run()
        return process

    def _resume(self, process: Process, edge: tuple[Answer, float]) -> None:
        answer, process.now_s = edge
        self._running = process
        process.resume(answer)
        self._run()

    def _end(self, node: Node) -> None:
        if node.live is not None:
            process, node.live = node.live, None
            process.kill()
            self._run()

    def _run(self) -> None:
        self.loop.run_forever()  # until it asks, or ends
        while self.loop._ready:  # what it has begun besides goes as far as it can
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()


class _Id(NamedTuple):
    hex: str


class _AskingStore:
    """An `ObjectStore` as a process sees it."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset({Capability.LIST, Capability.PUT_IF_ABSENT})

    async def put(self, key: str, body: Body) -> None:
        await self._process.ask(Request("put", key, b"".join(body)))

    async def put_if_absent(self, key: str, body: Body) -> None:
        await self._process.ask(Request("put_if_absent", key, b"".join(body)))

    async def get(self, key: str) -> bytes:
        return await self._process.ask(Request("get", key))

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        return (await self.get(key))[offset : offset + length]

    async def head(self, key: str) -> ObjectInfo | None:
        return await self._process.ask(Request("head", key))

    async def delete(self, key: str) -> None:
        await self._process.ask(Request("delete", key))

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        for info in await self._process.ask(Request("list", prefix)):
            yield info


def run_alone(program: Program, answer: Callable[[Request], Answer], *, now_s: float, loop: Processes) -> Process:
    """Run a program to its end, with nobody beside it. Raises its error."""
    process = loop._begin("f", program, now_s)
    while not process.done:
        assert process.request is not None
        with suppress(DeadError):
            loop._resume(process, (answer(process.request), now_s))
    if process.error is not None:
        raise process.error
    return process
