"""Reads the rows of a step: what its commits changed, or a whole state, with the columns of the mirror's form."""

import datetime as dt
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import msgspec

from statebackend._codec.commit import Commit
from statebackend._codec.plain import key_from, key_of_shown, plain
from statebackend._columns.arrow import Array, DataType, RecordBatch, Schema, pa, pc, plain_of
from statebackend._log.mirror_steps import Form
from statebackend._log.position import FoundCommit
from statebackend._mirroring.planning import StepPlan
from statebackend._mirroring.spool import Spool
from statebackend._mirroring.target import (
    BATCH_ID,
    BEGIN,
    CHECKPOINT_ID,
    COMMITTED_AT,
    DELETE,
    GENERATION,
    OP,
    SNAPSHOT,
    UNDO_DELETE,
    UNDO_UPDATE,
    UPDATE,
)
from statebackend._reading.asked_of_state import state_in
from statebackend._reading.changed import CHANGE_TYPE
from statebackend._reading.feed import Stretch, open_changes_of
from statebackend._reading.opened_state import Batches, open_batches_of
from statebackend._reading.rows.asked_rows import WITH_VALUES_HELD
from statebackend._reading.rows.layouts import KEY, KEY_GROUP
from statebackend._reading.what_to_read import AskedOfState
from statebackend._state.declared import COLUMNAR
from statebackend._state.values import Upcast
from statebackend._upkeep.job_primary import JobPrimary
from statebackend._upkeep.progress import Tell
from statebackend.errors import InputError
from statebackend.ids import Key

_TIME: Final = pa.timestamp("us", tz="UTC")
_OURS: Final = {
    GENERATION: pa.int64(),
    OP: pa.string(),
    CHECKPOINT_ID: pa.int64(),
    BATCH_ID: pa.int64(),
    COMMITTED_AT: _TIME,
}
_FEED: Final = (CHECKPOINT_ID, BATCH_ID, CHANGE_TYPE)
_IN_FRONT: Final[Mapping[Form, Sequence[str]]] = {
    "log": (GENERATION, OP, CHECKPOINT_ID, BATCH_ID, COMMITTED_AT),
    "table": (OP,),
}
_BEHIND: Final[Mapping[Form, Sequence[str]]] = {"log": (), "table": (CHECKPOINT_ID, BATCH_ID, COMMITTED_AT)}


class RowsOfSteps:
    """Reads the rows of the steps of one mirror into spools."""

    def __init__(
        self,
        primary: JobPrimary,
        state: str,
        *,
        form: Form,
        key_as_json: bool,
        migrate: Sequence[Upcast],
    ) -> None:
        self._primary = primary
        self._state = state
        self._form: Final[Form] = form
        self._key_as_json = key_as_json
        self._migrate = migrate

    async def read(
        self,
        plan: StepPlan,
        generation: int,
        spool: Spool,
        *,
        partitions: int | None,
        key_type: DataType | None,
        found: Callable[[], None],
        tell: Tell,
    ) -> Sequence[int] | None:
        """Put the rows of the step into the spool.

        `partitions`: as `MirrorTarget.partitions`. `key_type`: of the table. `found`: called when the spool has some
        rows of a step that has more, perhaps.

        Returns the partitions that the rows are all of, `None` where they are changes, or the whole state. Raises as
        `read_state`, `KeyTypeError` for keys of several types, and `CheckpointNotFoundError` if a commit was swept.
        """
        laying = _Laying(self._form, plan.commits, generation)
        if plan.kind == "whole":
            await self._add_state(plan.last, laying, spool, SNAPSHOT, key_type, tell=tell)
            if self._form == "log" and spool.schema is not None:
                await self._in_thread(spool.add, [laying.begin(spool.schema)])
            return None
        if partitions is not None:
            return await self._add_partitions(plan, partitions, laying, spool, key_type)
        await self._add_changes(plan, laying, spool, found)
        if plan.kind == "undo":
            await self._add_undone(plan, laying, spool)
        return None

    async def has_none(self, commit: Commit) -> bool:
        """True if the state had no key at the commit. Raises as `read`."""
        if self._state not in {each.name for each in commit.states}:
            return True
        async with self._opened(commit) as batches:
            async for batch in batches:
                if batch.num_rows:
                    return False
        return True

    async def _add_state(
        self, commit: Commit, laying: "_Laying", spool: Spool, op: str, key_type: DataType | None, **asked: Any
    ) -> None:
        async with self._opened(commit, **asked) as batches:
            async for batch in batches:
                await self._in_thread(lambda batch=batch: spool.add([laying.of_state(batch, commit, op)]))
            if spool.schema is None and key_type is not None:
                at = batches.schema.get_field_index(KEY)
                none = pa.RecordBatch.from_pylist([], schema=batches.schema.set(at, pa.field(KEY, key_type)))
                spool.add([laying.of_state(none, commit, op)])

    async def _add_changes(self, plan: StepPlan, laying: "_Laying", spool: Spool, found: Callable[[], None]) -> None:
        if state_in(plan.last, self._state).kind not in WITH_VALUES_HELD:
            async with self._opened_changes(plan.commits, plan.before) as batches:
                while some := await batches.some():
                    await self._in_thread(lambda some=some: spool.add([laying.of_changes(each) for each in some]))
                    found()
            return
        before = plan.before
        for commit in plan.commits:  # a commit says what was added to a list: what the list is then, has to be read
            keys = await self._keys_of([commit], before)
            await self._add_looked_up(commit, keys, laying, spool, (UPDATE, DELETE))
            before = commit

    async def _add_undone(self, plan: StepPlan, laying: "_Laying", spool: Spool) -> None:
        keys = await self._keys_of(plan.undone, plan.before)
        for key in await self._keys_of(plan.commits, plan.before):
            keys.pop(key, None)
        await self._add_looked_up(plan.last, keys, laying, spool, (UNDO_UPDATE, UNDO_DELETE))

    async def _add_partitions(
        self, plan: StepPlan, partitions: int, laying: "_Laying", spool: Spool, key_type: DataType | None
    ) -> Sequence[int]:
        """The rows of all partitions that have a changed key."""
        changed = set[int]()
        async for batch in self._changed_keys(plan.commits, plan.before):
            changed.update(pc.unique(batch.column(KEY_GROUP)).to_pylist())
        chosen = sorted({group % partitions for group in changed})
        groups = range(plan.last.max_parallelism)
        wanted = frozenset(group for group in groups if group % partitions in chosen)
        if wanted:
            await self._add_state(plan.last, laying, spool, UPDATE, key_type, scattered=wanted)
        return chosen

    async def _add_looked_up(
        self, commit: Commit, keys: Mapping[Key, int], laying: "_Laying", spool: Spool, ops: tuple[str, str]
    ) -> None:
        """A row for each key, as the commit has it. `keys`: with the group of each."""
        if not keys:
            return
        missing = dict(keys)
        schema: Schema = None
        async for batch in self._state_rows(commit, keys=frozenset(keys)):
            schema = batch.schema
            for shown in plain_of(batch.column(KEY)):
                missing.pop(self._key(shown, commit), None)
            await self._in_thread(lambda batch=batch: spool.add([laying.of_state(batch, commit, ops[0])]))
        if missing:
            if schema is None:
                schema = await self._schema(commit, frozenset(keys))
            gone = self._gone(schema, missing, as_json=self._as_json(commit))
            await self._in_thread(spool.add, [laying.of_state(gone, commit, ops[1])])

    @staticmethod
    def _gone(schema: Schema, keys: Mapping[Key, int], *, as_json: bool) -> RecordBatch:
        type_ = schema.field(KEY).type
        shown = [shown_key(key, type_, as_json=as_json) for key in keys]
        arrays = [pa.array(list(keys.values()), pa.int32()), pa.array(shown, type_)]
        others = [pa.nulls(len(keys), field.type) for field in list(schema)[2:]]
        return pa.RecordBatch.from_arrays([*arrays, *others], schema=schema)

    async def _keys_of(self, commits: Sequence[Commit], before: Commit | None) -> dict[Key, int]:
        """The keys that the commits changed, and their groups."""
        found: dict[Key, int] = {}
        async for batch in self._changed_keys(commits, before):
            keys = [self._key(shown, commits[-1]) for shown in plain_of(batch.column(KEY))]
            found.update(zip(keys, batch.column(KEY_GROUP).to_pylist(), strict=True))
        return found

    def _key(self, shown: Any, commit: Commit) -> Key:
        found: Key = key_from(shown) if self._as_json(commit) else key_of_shown(shown)
        return found

    def _as_json(self, commit: Commit) -> bool:
        """True if keys are text in JSON. Those of columnar state have a type of their own."""
        return self._key_as_json and state_in(commit, self._state).kind != COLUMNAR

    async def _changed_keys(self, commits: Sequence[Commit], before: Commit | None) -> AsyncIterator[RecordBatch]:
        async with self._opened_changes(commits, before) as batches:
            async for batch in batches:
                yield batch.select([KEY_GROUP, KEY])

    def _opened_changes(self, commits: Sequence[Commit], before: Commit | None) -> AbstractAsyncContextManager[Batches]:
        return open_changes_of(
            self._primary,
            self._state,
            Stretch(before, commits),
            key_as_json=self._as_json(commits[-1]),
            migrate=self._migrate,
        )

    async def _state_rows(self, commit: Commit, **asked: Any) -> AsyncIterator[RecordBatch]:
        async with self._opened(commit, **asked) as batches:
            async for batch in batches:
                yield batch

    def _opened(
        self,
        commit: Commit,
        *,
        keys: frozenset[Key] | None = None,
        scattered: frozenset[int] | None = None,
        tell: Tell = lambda _: None,
    ) -> AbstractAsyncContextManager[Batches]:
        asked = AskedOfState(
            keys=None if keys is None else list(keys), key_as_json=self._as_json(commit), migrate=self._migrate
        )
        found = FoundCommit(commit, {})
        return open_batches_of(
            found, state_in(commit, self._state), asked, self._primary, scattered=scattered, tell=tell
        )

    async def _schema(self, commit: Commit, keys: frozenset[Key]) -> Schema:
        async with self._opened(commit, keys=keys) as batches:
            return batches.schema

    async def _in_thread(self, function: Any, *arguments: Any) -> None:
        await self._primary.threads.cpu(function, *arguments)


class _Laying:
    """Adds the mirror's columns to rows of a state, or of its feed."""

    def __init__(self, form: Form, commits: Sequence[Commit], generation: int) -> None:
        self._form: Final[Form] = form
        self._generation = generation
        self._times = {int(commit.checkpoint_id): _time(commit) for commit in commits}

    def of_changes(self, batch: RecordBatch) -> RecordBatch:
        """Rows of the feed, all of one commit. Their types of change are the ops."""
        ids = batch.column(CHECKPOINT_ID)
        ours = {
            OP: batch.column(CHANGE_TYPE),
            CHECKPOINT_ID: ids,
            BATCH_ID: batch.column(BATCH_ID),
            COMMITTED_AT: _all(self._times[ids[0].as_py()], COMMITTED_AT, batch.num_rows),
        }
        return self._laid(batch.select([each for each in batch.schema.names if each not in _FEED]), ours)

    def of_state(self, batch: RecordBatch, commit: Commit, op: str) -> RecordBatch:
        """Rows of a state as of a commit, all with one op."""
        batch_id = None if commit.source is None else commit.source.batch_id
        values = {OP: op, CHECKPOINT_ID: int(commit.checkpoint_id), BATCH_ID: batch_id, COMMITTED_AT: _time(commit)}
        return self._laid(batch, {each: _all(found, each, batch.num_rows) for each, found in values.items()})

    def begin(self, schema: Schema) -> RecordBatch:
        """The row that ends a whole step of a log."""
        last_id = next(reversed(self._times))
        values: dict[str, Any] = {
            GENERATION: self._generation,
            OP: BEGIN,
            CHECKPOINT_ID: last_id,
            COMMITTED_AT: self._times[last_id],
        }
        arrays = [
            pa.nulls(1, field.type) if field.name not in values else pa.array([values[field.name]], field.type)
            for field in schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _laid(self, batch: RecordBatch, ours: dict[str, Array]) -> RecordBatch:
        ours[GENERATION] = _all(self._generation, GENERATION, batch.num_rows)
        names = [f"value.{each}" if each in _OURS else each for each in batch.schema.names]
        front, behind = _IN_FRONT[self._form], _BEHIND[self._form]
        arrays = [*(ours[each] for each in front), *batch.columns, *(ours[each] for each in behind)]
        own = [pa.field(name, field.type) for name, field in zip(names, batch.schema, strict=True)]
        fields = [
            *(pa.field(each, _OURS[each]) for each in front),
            *own,
            *(pa.field(each, _OURS[each]) for each in behind),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def check_mirrored(commit: Commit, name: str) -> None:
    """Raise `InputError` for a state that no table can mirror."""
    if state_in(commit, name).kind.startswith("operator"):
        raise InputError("operator state has no keys, and cannot be mirrored: export it", state=name)


def _time(commit: Commit) -> dt.datetime:
    return dt.datetime.fromtimestamp(commit.committed_at_s, dt.UTC)


def _all(value: Any, name: str, count: int) -> Array:
    return pa.repeat(pa.scalar(value, _OURS[name]), count)


def shown_key(key: Key, type_: Any, *, as_json: bool) -> Any:
    if as_json:
        return msgspec.json.encode(plain(key)).decode()
    if isinstance(key, tuple):
        return {field.name: shown_key(part, field.type, as_json=False) for field, part in zip(type_, key, strict=True)}
    return key
