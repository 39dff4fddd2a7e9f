"""Opens one state of a job for reading, as batches of rows in Arrow: asynchronous, or as a `RecordBatchReader`."""

import weakref
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, Self, Unpack

import anyio
from anyio.abc import TaskGroup

from statebackend._backend.stores import local_to_read
from statebackend._backend.tables import HEAP, rocksdb_restore
from statebackend._checkpoint.fetch import Fetcher
from statebackend._checkpoint.restore import LocalCopies
from statebackend._codec.commit import Commit
from statebackend._columns.arrow import RecordBatch, Schema, pa
from statebackend._keywords import keywords_of
from statebackend._log.position import FoundCommit, Pin
from statebackend._portal import OpenContext, Portal
from statebackend._reading.asked_of_state import ReadingStep, groups_of, state_in, steps
from statebackend._reading.batches import KEYS_BYTES_MAX, Consume, StateReading
from statebackend._reading.pages_of_keys import PagesOfKeys, may_be_in_pages
from statebackend._reading.rows.asked_rows import WITH_VALUES_HELD, layout_and_merge
from statebackend._reading.rows.layouts import (
    ColumnsLayout,
    ElementsLayout,
    Layout,
)
from statebackend._reading.what_to_read import AskedOfState, WhatToRead
from statebackend._tasks import open_tasks
from statebackend._upkeep.job_primary import JobPrimary, open_job_primary
from statebackend._upkeep.progress import Meter, Tell
from statebackend._upkeep.read_commit import operator_elements
from statebackend.abc import Capability, ObjectStore
from statebackend.errors import CheckpointNotFoundError, MissingObjectError
from statebackend.ids import StateDescriptor, ranges_of
from statebackend.settings import Settings


class Batches:
    """The rows of a state, batch by batch: an asynchronous iterator. Of a `kind`, at a `checkpoint_id`."""

    def __init__(
        self, commit: Commit, kind: str, layout: Layout, run: Callable[[Consume], Awaitable[None]], tasks: TaskGroup
    ) -> None:
        self.kind: Final = kind
        self.checkpoint_id: Final = commit.checkpoint_id
        self.max_parallelism: Final = commit.max_parallelism
        self._layout = layout
        self._run = run
        self._send, self._receive = anyio.create_memory_object_stream[Sequence[RecordBatch]](0)
        self._ready: deque[RecordBatch] = deque()
        self._failure: Exception | None = None
        tasks.start_soon(self._produce)

    @property
    def schema(self) -> Schema:
        """The schema of every batch."""
        return self._layout.schema

    async def begin(self) -> None:
        """Wait for the first batch, which tells the type of the keys. Raises as `next`."""
        self._ready.extend(await self._receive_some())

    async def next(self) -> RecordBatch | None:
        """The next batch, `None` after the last one. Raises as `read_state`. A cancelled call loses no batch."""
        if not self._ready:
            self._ready.extend(await self._receive_some())
        return self._ready.popleft() if self._ready else None

    async def some(self) -> Sequence[RecordBatch]:
        """Those of the next batches that are there, none after the last one. As `next`."""
        found = list(self._ready) or await self._receive_some()
        self._ready.clear()
        return found

    async def _receive_some(self) -> Sequence[RecordBatch]:
        try:
            return await self._receive.receive()
        except anyio.EndOfStream:
            if self._failure is not None:
                raise self._failure from None
            return ()

    def __aiter__(self) -> AsyncIterator[RecordBatch]:
        return self

    async def __anext__(self) -> RecordBatch:
        if (found := await self.next()) is None:
            raise StopAsyncIteration
        return found

    async def _produce(self) -> None:
        with self._send:
            try:
                await self._run(self._send.send)
            except Exception as error:  # noqa: BLE001  # raised where the batches are taken
                self._failure = error

    def close(self) -> None:
        """No more batches are taken."""
        self._send.close()
        self._receive.close()


@keywords_of(WhatToRead, AskedOfState)
@asynccontextmanager
async def read_batches(
    settings: Settings,
    state: str,
    *,
    pin: Pin | None = None,
    store: ObjectStore | None = None,
    tell: Tell = lambda _: None,
    **what: Unpack[WhatToRead],
) -> AsyncGenerator[Batches]:
    """As `read_state`, in asynchronous code: yields the batches. `tell` is called on the loop after each file.

    `pin`: read the very commit that was found before, in place of a checkpoint or a savepoint.
    """
    asked = AskedOfState(**what)
    async with open_job_primary(settings, store) as primary:
        found = await primary.find(checkpoint_id=asked.checkpoint_id, savepoint=asked.savepoint, at=asked.at, pin=pin)
        declared = state_in(found.commit, state)
        async with open_batches_of(found, declared, asked, primary, tell=tell) as batches:
            yield batches


@asynccontextmanager
async def open_batches_of(
    found: FoundCommit,
    state: StateDescriptor,
    asked: AskedOfState,
    primary: JobPrimary,
    *,
    scattered: frozenset[int] | None = None,
    tell: Tell = lambda _: None,
) -> AsyncGenerator[Batches]:
    """As `read_batches`, of a commit that was found.

    `state`: as the commit declares it, or as a later declaration that can read it. `scattered`: only these key groups,
    which need not be neighbours, and in one go, as keys are read.
    """
    local = local_to_read(primary.settings, primary.threads)
    async with open_tasks() as tasks:
        fetcher = Fetcher(primary.store, at_hand=found.at_hand, threads=primary.threads)
        layout, run = _reading_of(
            found.commit, state, asked, scattered, primary=primary, fetcher=fetcher, local=local, tell=tell
        )
        batches = Batches(found.commit, state.kind, layout, run, tasks)
        try:
            await batches.begin()
            yield batches
        finally:
            batches.close()


def _reading_of(
    commit: Commit,
    state: StateDescriptor,
    asked: AskedOfState,
    scattered: frozenset[int] | None,
    *,
    primary: JobPrimary,
    fetcher: Fetcher,
    local: LocalCopies | None,
    tell: Tell,
) -> tuple[Layout, Callable[[Consume], Awaitable[None]]]:
    """How the rows are laid out, and what reads them once. Raises `InputError` and `KeyTypeError`."""
    groups = groups_of(commit, asked.key_groups, asked.keys) if scattered is None else ranges_of(scattered)
    plan = list(
        steps(
            commit,
            groups,
            bytes_max=KEYS_BYTES_MAX,
            by_keys=asked.keys is not None or scattered is not None,
            holds_values=state.kind in WITH_VALUES_HELD,
        )
    )
    layout, open_merge = layout_and_merge(commit, state, asked)
    if isinstance(layout, ElementsLayout):
        return layout, partial(_run_elements, commit, state, layout)
    pages: PagesOfKeys | None = None
    if local is None and asked.keys is not None and may_be_in_pages(primary.settings):
        pages = PagesOfKeys(
            primary.store, state.state_id, max_parallelism=commit.max_parallelism, threads=primary.threads
        )
    reading = StateReading(
        commit,
        state,
        layout,
        open_merge,
        columns=layout.columns if isinstance(layout, ColumnsLayout) else None,
        fetcher=fetcher,
        local=local,
        rocksdb=rocksdb_restore(fetcher, local, primary.settings, threads=primary.threads, tables=HEAP),
        concurrency_max=primary.settings.restore_concurrency_max,
        threads=primary.threads,
        meter=Meter("reading", _size_of(plan), tell),
        pages=pages,
    )

    async def run(consume: Consume) -> None:
        await told_if_swept(primary, commit, reading.run(plan, consume))

    return layout, run


@keywords_of(WhatToRead, AskedOfState)
def read_state(
    settings: Settings,
    state: str,
    *,
    store: ObjectStore | None = None,
    **what: Unpack[WhatToRead],
) -> Any:
    """Read one state as a `pyarrow.RecordBatchReader`, beside a running job and without its classes.

        duckdb.sql("select value.origin, count(*) from legs group by 1")     # legs = sb.read_state(settings, "legs")

    A row has the `key_group` and `key`, and the `value`: a struct for a record or a tuple, a list, a map. A columnar
    state has its columns instead. The state is that of the newest checkpoint, of `checkpoint_id` or of `savepoint`;
    or of the newest that is not later than `at`: an aware `datetime`, text in ISO 8601, or seconds since 1970.
    `key_groups`, the first and the last, and `keys` narrow it down: then little more than their share is read. Operator
    state, which has neither, is read whole. Keys may be given as any reader hands them out: a tuple also as the struct
    or the array that it is shown as.
    `columns` are those of a columnar state, or fields of a record; no others are decoded.

    What has expired is left out if `ttl` is given, as in the state's declaration. It goes by the clock in the commit,
    or by its own `now`. Values of an earlier version need `migrate`, as in the declaration. Keys of several types need
    `key_as_json`.

    The rows are in no order. In memory are some batches, a few of the job's files, and the keys that changed since the
    last base. Nothing is written, and nobody is fenced. But if the read takes longer than the checkpoint is retained,
    it may be swept meanwhile: name it by a savepoint.

    Raises `InputError` for a job without a checkpoint, or a state or column that is not there;
    `CheckpointNotFoundError`, also in the middle if the checkpoint was swept; `CorruptSegmentError`, which says the
    object and the offset; `ValueDecodeError`, `KeyTypeError`. An error in the middle ends the stream: what
    came before it is no result.
    """
    opening = read_batches(settings, state, store=store, **what)
    portal = Portal(name="statebackend-read")
    try:
        held = portal.hold(opening)
        held.wait()
        batches = _Waiting(portal, held)
    except BaseException:
        portal.close()
        raise
    return pa.RecordBatchReader.from_batches(held.result().schema, batches)


class _Waiting:
    """The batches for synchronous code. What they are read with is closed after the last one, or with this."""

    def __init__(self, portal: Portal, held: OpenContext[Batches]) -> None:
        self._batches = held.result()
        self._portal = portal
        self._ready: deque[RecordBatch] = deque()
        self._close = weakref.finalize(self, _close, portal, held)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> RecordBatch:
        if not self._ready and self._close.alive:
            try:
                self._ready.extend(self._portal.call(self._batches.some))
            except BaseException:
                self._close()
                raise
            if not self._ready:
                self._close()
        if not self._ready:
            raise StopIteration
        return self._ready.popleft()


def _close(portal: Portal, held: OpenContext[Batches]) -> None:
    try:
        held.close()
    finally:
        portal.close()


async def told_if_swept(primary: JobPrimary, commit: Commit, reading: Awaitable[None]) -> None:
    """Do this reading of the commit. Raises `CheckpointNotFoundError` if an object is gone because it was swept."""
    try:
        await reading
    except MissingObjectError as error:
        if Capability.LIST in primary.store.capabilities:
            savepoints = primary.positions.savepoints
            if commit.sequence < await savepoints.floor() and await savepoints.with_id(commit.checkpoint_id) is None:
                raise CheckpointNotFoundError(
                    "the checkpoint was swept while it was read: read a newer one, or name it by a savepoint",
                    checkpoint_id=commit.checkpoint_id,
                    object=error.facts.get("object"),
                ) from error
        raise


async def _run_elements(commit: Commit, state: StateDescriptor, layout: ElementsLayout, consume: Consume) -> None:
    if elements := operator_elements(commit, state):
        await consume([layout.batch(elements)])


def _size_of(plan: Sequence[ReadingStep]) -> int:
    """The bytes of the files of a plan, as far as they are expected to be read."""
    changelog = sum(handle.length for step in plan for handle in step.part.changelog)
    bases = [base for step in plan for base in step.part.all_bases]
    return changelog + sum(base.size_bytes * base.live // max(1, base.key_groups_written) for base in bases)
