"""The change feed of a state: commit by commit what was put and deleted, from the change sets that each commit added.

    log, newest first -> the stretch of commits asked for -> of each: its own change sets -> batches (`changed.py`)

A commit lists the change sets that it adds behind those of its parent, until a base takes their place in a later one.
So the feed reaches back as far as commits are retained, but for the oldest: what that added only its parent can tell.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from itertools import pairwise
from typing import Any, NamedTuple, TypedDict, Unpack, cast

import msgspec

from statebackend._backend.stores import local_to_read
from statebackend._backend.tables import HEAP, rocksdb_restore
from statebackend._checkpoint.fetch import Fetcher
from statebackend._checkpoint.materialization.tiers import is_merged
from statebackend._checkpoint.rescale import range_of
from statebackend._checkpoint.restore import LocalCopies
from statebackend._codec.commit import Commit
from statebackend._columns.arrow import RecordBatch, pa
from statebackend._columns.table_schema import read_schema
from statebackend._reading.asked_of_state import ReadingStep, can_read, groups_of, state_in, steps
from statebackend._reading.batches import KEYS_BYTES_MAX, Consume, StateReading
from statebackend._reading.changed import OLD_VALUE, ChangesLayout, changes_of_kind
from statebackend._reading.opened_state import Batches, told_if_swept
from statebackend._reading.rows.asked_rows import layout_and_merge
from statebackend._reading.rows.layouts import KEY, VALUE, ColumnsLayout, KeyedLayout, Layout
from statebackend._reading.rows.merged_rows import Merge
from statebackend._reading.what_to_read import AskedOfState
from statebackend._state.declared import COLUMNAR
from statebackend._state.values import Upcast
from statebackend._tables.key_groups import OwnedKeys
from statebackend._tasks import open_tasks
from statebackend._upkeep.job_primary import JobPrimary, open_job_primary
from statebackend._upkeep.progress import Meter
from statebackend.abc import Capability, ObjectStore
from statebackend.errors import CheckpointNotFoundError, InputError, MissingObjectError, RewindError
from statebackend.ids import ChangeSetHandle, KeyGroupRange, StateDescriptor, all_key_groups
from statebackend.settings import Settings


class Stretch(NamedTuple):
    """Commits of one branch, oldest first, and the one before them: `None` if nothing was before."""

    before: Commit | None
    commits: Sequence[Commit]


async def stretch(primary: JobPrimary, last: Commit, *, is_before: Callable[[Commit], bool]) -> Stretch:
    """The commits up to `last` that come after the newest for which `is_before` is true, or after nothing.

    Raises `CheckpointNotFoundError`, which says where a feed can begin, if some of them are not retained any more.
    """
    floor = await retained_from(primary)
    found: list[Commit] = []
    async with aclosing(cast("AsyncGenerator[Commit]", primary.log.branch(last))) as branch:
        async for commit in branch:
            if is_before(commit):
                return Stretch(commit, found[::-1])
            if commit.sequence < floor:
                break
            found.append(commit)
        else:
            if found and found[-1].parent is None:
                return Stretch(None, found[::-1])
    first = found[-2] if len(found) > 1 else None
    raise CheckpointNotFoundError(
        "the feed begins before what is kept: " + ("begin it later" if first else "no commit before the newest is"),
        first_batch_id=None if first is None or first.source is None else first.source.batch_id,
        first_checkpoint_id=None if first is None else first.checkpoint_id,
        newest_checkpoint_id=last.checkpoint_id,
    )


async def stretch_after(primary: JobPrimary, sequence: int, last: Commit) -> Stretch:
    """The commits after that place in the log, where a feed has stopped; -1 for the beginning of the job.

    Raises `RewindError` if the job has gone back behind that commit since, and as `stretch`.
    """
    found = await stretch(primary, last, is_before=lambda commit: commit.sequence <= sequence)
    at = -1 if found.before is None else found.before.sequence
    if at != sequence:
        first = found.commits[0] if found.commits else None
        raise RewindError(
            "the job was taken back behind the commit that the feed has read: begin another feed with what came since",
            sequence_read=sequence,
            sequence_left=at,
            first_checkpoint_id=None if first is None else first.checkpoint_id,
        )
    return found


async def retained_from(primary: JobPrimary) -> int:
    """The entry of the log from which on all are kept."""
    if Capability.LIST not in primary.store.capabilities:
        return 0
    return await primary.positions.savepoints.floor()


def own_change_sets(commit: Commit, before: Commit | None, key_groups: KeyGroupRange) -> Sequence[ChangeSetHandle]:
    """The change sets of `key_groups` that the commit has added to those of its parent.

    They are the last ones of its changelog: those that neither lie where one of the parent's lies, nor were merged.
    A commit with another number of key groups is a rewrite, and adds none.
    """
    if before is not None and before.max_parallelism != commit.max_parallelism:
        return ()
    known = {(each.segment.key, each.offset) for each in range_of(before, key_groups).changelog}
    changelog = range_of(commit, key_groups).changelog
    begin = len(changelog)
    while begin and not is_merged(changelog[begin - 1]):
        if (changelog[begin - 1].segment.key, changelog[begin - 1].offset) in known:
            break
        begin -= 1
    return changelog[begin:]


class HowToShow(TypedDict, total=False):
    """The keywords of `open_changes_of`, which says what they mean."""

    columns: Sequence[str] | None
    old_values: bool
    key_as_json: bool
    migrate: Upcast | Sequence[Upcast]
    shown_as: StateDescriptor | None


@asynccontextmanager
async def open_changes(
    settings: Settings,
    state: str,
    *,
    sequences: Sequence[int],
    before: int | None,
    store: ObjectStore | None = None,
    **how: Unpack[HowToShow],
) -> AsyncGenerator[Batches]:
    """As `open_changes_of`, of the commits in these places of the log of a job that is opened for it.

    `sequences`: of neighbouring commits of one branch, oldest first, and at least one; `before`: of the commit before
    them. Raises `CheckpointNotFoundError` also for a commit that is gone.
    """
    async with open_job_primary(settings, store) as primary:
        entries = [] if before is None else [before]
        try:
            commits = [await primary.log.load_commit(each) for each in (*entries, *sequences)]
        except MissingObjectError as error:
            raise CheckpointNotFoundError(
                "a commit of the feed is gone, perhaps swept: ask for the feed again, to be told where it can begin",
                object=error.facts.get("object"),
            ) from error
        found = Stretch(commits[0] if entries else None, commits[len(entries) :])
        async with open_changes_of(primary, state, found, **how) as batches:
            yield batches


@asynccontextmanager
async def open_changes_of(
    primary: JobPrimary,
    state: str,
    stretch: Stretch,
    *,
    columns: Sequence[str] | None = None,
    old_values: bool = False,
    key_as_json: bool = False,
    migrate: Upcast | Sequence[Upcast] = (),
    shown_as: StateDescriptor | None = None,
) -> AsyncGenerator[Batches]:
    """Yield the changes of one state in some commits, as batches with the columns of `read_batches` and more.

    The first columns are `checkpoint_id`, `batch_id` and `change_type`; with `old_values` there is an `old_value`
    behind the others. A commit that does not have the state yet has no changes of it.

    All values, old and new, are as the last of the commits reads them; or as `shown_as`, a later declaration. Those of
    an earlier version need `migrate`, as in `read_batches`.

    Raises `InputError` as `read_batches`, and `CheckpointNotFoundError`, also in the middle, if a commit was swept.
    """
    if old_values and key_as_json:
        raise InputError("old values are looked up by their keys, which keys as JSON do not tell: choose one of them")
    asked = AskedOfState(columns=columns, key_as_json=key_as_json, migrate=migrate)
    before, commits = stretch
    _check_changes(commits, state)
    found = state_in(commits[-1], state)
    if shown_as is not None and can_read(shown_as, found):
        found = msgspec.structs.replace(shown_as, state_id=found.state_id)
    _check_feed(found)
    settings = msgspec.structs.replace(primary.settings, max_parallelism=commits[-1].max_parallelism)
    local = local_to_read(settings, primary.threads)
    async with open_tasks() as tasks:
        layout, _ = layout_and_merge(commits[-1], found, asked)
        assert isinstance(layout, KeyedLayout | ColumnsLayout)
        feed = Feed(primary, settings, found, local=local, layout=layout, asked=asked, old_values=old_values)

        async def run(consume: Consume) -> None:
            for parent, commit in pairwise((before, *commits)):
                assert commit is not None
                await told_if_swept(primary, commit, feed.read(commit, parent, consume))

        shown = ChangesLayout(layout, commits[-1], old_values=old_values)
        batches = Batches(commits[-1], found.kind, shown, run, tasks)
        try:
            await batches.begin()
            yield batches
        finally:
            batches.close()


def made_as_a_whole(commit: Commit, state: str) -> bool:
    """True if the state is another one behind this commit by no changes that a feed could show.

    A job begins with bases if it was seeded, and with another job's bases and change sets if it is a clone.
    """
    return state in commit.transformed or (
        commit.parent is None and any(part.all_bases or any(map(is_merged, part.changelog)) for part in commit.ranges)
    )


def _check_changes(commits: Sequence[Commit], state: str) -> None:
    """Refuse commits whose rows are no changes: they would be missing."""
    for commit in commits:
        if made_as_a_whole(commit, state):
            raise InputError(
                "the commit made the state as a whole, by a seed, a clone or a transformation, and is no change of a "
                "batch: read the state as of that checkpoint, and begin another feed behind it",
                state=state,
                checkpoint_id=commit.checkpoint_id,
            )


def _check_feed(state: StateDescriptor) -> None:
    if state.kind.startswith("operator"):
        raise InputError("operator state has no change feed: it is written whole with each commit", state=state.name)


class Feed:
    """Reads the changes of one state, commit by commit: all of them, and the old values, as it is declared in `state`.

    `layout`: of the state.
    """

    def __init__(
        self,
        primary: JobPrimary,
        settings: Settings,
        state: StateDescriptor,
        *,
        local: LocalCopies | None,
        layout: KeyedLayout | ColumnsLayout,
        asked: AskedOfState,
        old_values: bool,
    ) -> None:
        self._primary = primary
        self._settings = settings
        self._local = local
        self._state = state
        self._layout = layout
        self._asked = asked
        self._old_values = old_values
        schema = read_schema(state.schema, state.key_schema) if state.kind == COLUMNAR else None
        owned = OwnedKeys(all_key_groups(settings.max_parallelism), settings.max_parallelism)
        self._open_merge = changes_of_kind(state.kind, schema, owned)

    async def read(self, commit: Commit, parent: Commit | None, consume: Consume) -> None:
        """Hand the batches of one commit to `consume`. With old values they are held until all of them are read."""
        if self._state.name not in {each.name for each in commit.states}:
            return
        plan = [
            ReadingStep(msgspec.structs.replace(part, changelog=tuple(own), bases=(), rocksdb=()), (part.key_groups,))
            for part in commit.ranges
            if (own := own_change_sets(commit, parent, part.key_groups))
        ]
        reading = self._reading(commit, ChangesLayout(self._layout, commit), self._open_merge)
        if not self._old_values:
            await reading.run(plan, consume)
            return
        held: list[RecordBatch] = []

        async def hold(batches: Sequence[RecordBatch]) -> None:
            held.extend(batches)

        await reading.run(plan, hold)
        if held:
            await consume([await self._with_old_values(pa.Table.from_batches(held), commit, parent)])

    async def _with_old_values(self, changes: Any, commit: Commit, parent: Commit | None) -> RecordBatch:
        keys = [_key_of(each) for each in changes.column(KEY).to_pylist()]
        type_ = ChangesLayout(self._layout, commit).value_type
        found = pa.array([None] * len(keys), type_)
        if parent is not None and self._state.name in {each.name for each in parent.states}:
            asked = AskedOfState(keys=keys, columns=self._asked.columns, migrate=self._asked.migrate)
            layout, open_merge = layout_and_merge(parent, self._state, asked)
            groups = groups_of(parent, None, asked.keys)
            old: list[RecordBatch] = []

            async def hold(batches: Sequence[RecordBatch]) -> None:
                old.extend(batches)

            await self._reading(parent, layout, open_merge).run(
                steps(parent, groups, bytes_max=KEYS_BYTES_MAX, by_keys=True, holds_values=False), hold
            )
            table = pa.Table.from_batches(old, layout.schema).combine_chunks()
            places = {_key_of(key): place for place, key in enumerate(table.column(KEY).to_pylist())}
            there = pa.array([places.get(key) for key in keys], pa.int64())
            if places:
                found = self._values(table, type_).take(there)
        return changes.append_column(OLD_VALUE, found).combine_chunks().to_batches()[0]

    def _values(self, table: Any, type_: Any) -> Any:
        """The value of each row, in one column."""
        if not isinstance(self._layout, ColumnsLayout):
            return table.column(VALUE).combine_chunks()
        arrays = [table.column(field.name).combine_chunks() for field in type_]
        return pa.StructArray.from_arrays(arrays, fields=list(type_))

    def _reading(self, commit: Commit, layout: Layout, open_merge: Callable[[], Merge]) -> StateReading:
        fetcher = Fetcher(self._primary.store, at_hand={}, threads=self._primary.threads)
        return StateReading(
            commit,
            self._state,
            layout,
            open_merge,
            columns=self._layout.columns if isinstance(self._layout, ColumnsLayout) else None,
            fetcher=fetcher,
            local=self._local,
            rocksdb=rocksdb_restore(fetcher, self._local, self._settings, threads=self._primary.threads, tables=HEAP),
            concurrency_max=self._settings.restore_concurrency_max,
            threads=self._primary.threads,
            meter=Meter("reading", 1, lambda _: None),
        )


def _key_of(shown: Any) -> Any:
    """A key as the user gave it: a tuple is shown as a struct."""
    return tuple(map(_key_of, cast("dict[str, Any]", shown).values())) if isinstance(shown, dict) else shown
