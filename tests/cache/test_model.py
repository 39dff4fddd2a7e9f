"""Any order of opens, releases, cancellations, answers, failures, damage and time, against a model that keeps lists."""

import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend._cache.download_cache import DownloadCache
from statebackend._cache.download_ends import FileReader
from statebackend.errors import BackendClosedError, StoreUnavailableError
from statebackend.objectstore import MemoryStore
from statebackend.testing import run_virtual
from statebackend.testing.virtual_time import settle
from tests.cache.caches import IDLE_S, Setup, files_below, handle_of, open_setup

T = TypeVar("T")

CONTENTS = [bytes([number]) * size for number, size in enumerate((100, 200, 300, 400))]
HANDLES = [handle_of(f"file-{number}", content) for number, content in enumerate(CONTENTS)]
BYTES_MAX = 500


@dataclass(frozen=True)
class Step:
    """The next step: `what`, done to the reader or the file, or for the seconds, that `which` picks."""

    what: str
    which: int


WHATS = ["open"] * 3 + ["answer"] * 2 + ["release"] * 2 + ["cancel", "fail", "condemn", "wait"]
STEPS = st.lists(st.builds(Step, st.sampled_from(WHATS), st.integers(0, 11)), max_size=40)


class AskingStore(MemoryStore):
    """Every download waits to be told how it ends. Of one file there is never more than one."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way: dict[str, tuple[anyio.Event, list[Exception]]] = {}

    async def get(self, key: str) -> bytes:
        assert key not in self.under_way, "two downloads of one file at once"
        answer, errors = self.under_way[key] = anyio.Event(), []
        try:
            await answer.wait()
        finally:
            del self.under_way[key]
        for error in errors:
            raise error
        return await super().get(key)

    def end(self, key: str, *errors: Exception) -> None:
        answer, raised = self.under_way[key]
        raised.extend(errors)
        answer.set()


@dataclass(eq=False)
class Reader:
    """One use of a file, from the call to its end; `status` is how far it should be, `seen` how far it is."""

    number: int
    status: str = "waits"
    seen: str = "waits"
    file: FileReader | None = None
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    release: anyio.Event = field(default_factory=anyio.Event)

    async def run(self, cache: DownloadCache) -> None:
        try:
            with self.scope:
                async with cache.open(HANDLES[self.number]) as self.file:
                    self.seen = "reads"
                    await self.release.wait()
        except (StoreUnavailableError, BackendClosedError) as error:
            self.seen = type(error).__name__
        else:
            self.seen = "gone"


@dataclass(eq=False)
class ModelFile:
    """A file of the model, and who uses it."""

    number: int
    users: list[Reader] = field(default_factory=list[Reader])
    downloading: bool = True
    idle_since_s: float = 0.0

    @property
    def size_bytes(self) -> int:
        return len(CONTENTS[self.number])


class Model:
    """The files that should be there. `idle`: those without users, in the order in which they were released."""

    def __init__(self) -> None:
        self.found: dict[int, ModelFile] = {}
        self.condemned: list[ModelFile] = []
        self.idle: list[ModelFile] = []
        self.readers: list[Reader] = []
        self.now_s = 0.0

    @property
    def held_bytes(self) -> int:
        return sum(file.size_bytes for file in (*self.found.values(), *self.condemned))

    @property
    def downloading(self) -> list[ModelFile]:
        return [file for file in self.found.values() if file.downloading]

    def those(self, *statuses: str) -> list[Reader]:
        return [reader for reader in self.readers if reader.status in statuses]

    def file_of(self, reader: Reader) -> ModelFile:
        (file,) = (file for file in (*self.found.values(), *self.condemned) if reader in file.users)
        return file

    def open(self, reader: Reader) -> None:
        self.readers.append(reader)
        file = self.found.setdefault(reader.number, ModelFile(reader.number))
        file.users.append(reader)
        if file in self.idle:
            self.idle.remove(file)
        if not file.downloading:
            reader.status = "reads"

    def answer(self, file: ModelFile) -> None:
        file.downloading = False
        for reader in file.users:
            reader.status = "reads"

    def fail(self, file: ModelFile) -> None:
        del self.found[file.number]
        for reader in file.users:
            reader.status = "StoreUnavailableError"

    def leave(self, reader: Reader) -> None:
        file = self.file_of(reader)
        file.users.remove(reader)
        reader.status = "gone"
        if file.users:
            return
        if file in self.condemned:
            self.condemned.remove(file)
        elif file.downloading:
            del self.found[file.number]
        else:
            file.idle_since_s = self.now_s
            self.idle.append(file)

    def condemn(self, reader: Reader) -> None:
        file = self.file_of(reader)
        if file not in self.condemned:
            self.condemned.append(self.found.pop(file.number))

    def evict(self) -> None:
        while self.idle and (self.idle[0].idle_since_s + IDLE_S <= self.now_s or self.held_bytes > BYTES_MAX):
            del self.found[self.idle.pop(0).number]


@dataclass
class Both:
    """The model and the cache. Each step happens to both; one without an object is none."""

    model: Model
    store: AskingStore
    cache: DownloadCache
    tasks: TaskGroup

    async def take(self, step: Step) -> None:
        await getattr(self, step.what)(step.which)
        await settle()
        self.model.evict()

    async def open(self, which: int) -> None:
        reader = Reader(which % len(HANDLES))
        self.model.open(reader)
        self.tasks.start_soon(reader.run, self.cache)

    async def answer(self, which: int) -> None:
        for file in picked(self.model.downloading, which):
            self.model.answer(file)
            self.store.end(HANDLES[file.number].key)

    async def fail(self, which: int) -> None:
        for file in picked(self.model.downloading, which):
            self.model.fail(file)
            self.store.end(HANDLES[file.number].key, StoreUnavailableError("no answer"))

    async def release(self, which: int) -> None:
        for reader in picked(self.model.those("reads"), which):
            self.model.leave(reader)
            reader.release.set()

    async def cancel(self, which: int) -> None:
        for reader in picked(self.model.those("reads", "waits"), which):
            self.model.leave(reader)
            reader.scope.cancel()

    async def condemn(self, which: int) -> None:
        for reader in picked(self.model.those("reads"), which):
            self.model.condemn(reader)
            assert reader.file is not None
            reader.file.condemn()

    async def wait(self, which: int) -> None:
        self.model.now_s += 10 * which
        await anyio.sleep(10 * which)


def picked(among: list[T], which: int) -> list[T]:
    return [among[which % len(among)]] if among else []


async def check(model: Model, store: AskingStore, setup: Setup) -> None:
    """The cache is where the model is: on its books, on the disk, in the store, and for each reader."""
    setup.cache.check_invariants()
    assert setup.cache.held_bytes == setup.metrics.cache_bytes == model.held_bytes
    assert store.under_way.keys() == {HANDLES[file.number].key for file in model.downloading}
    expected = [CONTENTS[file.number] for file in (*model.found.values(), *model.condemned) if not file.downloading]
    assert Counter(path.read_bytes() for path in setup.files) == Counter(expected)
    assert [reader.seen for reader in model.readers] == [reader.status for reader in model.readers]
    for reader in model.those("reads"):
        assert reader.file is not None
        assert await reader.file.read() == CONTENTS[reader.number]


@settings(max_examples=150, deadline=None)
@given(steps=STEPS)
@run_virtual(threads=False)
async def test_the_cache_does_what_the_model_does(steps: list[Step]) -> None:
    """At every step, and at the end nothing is left: not on the disk, not in the store, and nobody waits."""
    store, model = AskingStore(), Model()
    for handle, content in zip(HANDLES, CONTENTS, strict=True):
        await store.put(handle.key, [content])
    with tempfile.TemporaryDirectory() as parent:
        async with anyio.create_task_group() as tasks:
            async with open_setup(Path(parent), store=store, cache_bytes_max=BYTES_MAX) as setup:
                both = Both(model, store, setup.cache, tasks)
                for step in steps:
                    await both.take(step)
                    await check(model, store, setup)
            await settle()
            assert files_below(Path(parent)) == []
            assert (setup.cache.held_bytes, store.under_way) == (0, {})
            closed = {"waits": "BackendClosedError"}
            assert [reader.seen for reader in model.readers] == [
                closed.get(reader.status, reader.status) for reader in model.readers
            ]
            for reader in model.those("reads"):
                reader.release.set()
        assert {reader.seen for reader in model.readers} <= {"gone", "StoreUnavailableError", "BackendClosedError"}
