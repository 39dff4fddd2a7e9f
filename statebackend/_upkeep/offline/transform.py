"""Changes a state key by key with a function, and commits all of it at once: re-keys, splits, and drops.

    read all states -> give each key of one to the function -> claimed: write bases of every owner -> one commit

The commit is an edit by hand, and a barrier: no rollback goes behind it. What the function has made lies in tables of
its own until then, of the kind that `settings.table` names.
"""

import importlib
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, cast

import msgspec

from statebackend._backend.tables import open_tables
from statebackend._checkpoint.materialization.bases import base_segment_bytes
from statebackend._checkpoint.restore import Restore
from statebackend._codec.commit import Commit
from statebackend._log.position import Position
from statebackend._state.declared import COLUMNAR, KeyedStates
from statebackend._state.descriptors import declaration_of, described
from statebackend._state.kinds.operator_state import mode_of
from statebackend._state.values import Upcast, Values
from statebackend._tables.table import OpenTable
from statebackend._upkeep.arguments import check_list
from statebackend._upkeep.job_primary import open_job_primary
from statebackend._upkeep.key_group_change import Owner
from statebackend._upkeep.offline.bases_of_owners import write_bases
from statebackend._upkeep.offline.offline_commit import Contents, OfflineJob, Uploads, open_offline
from statebackend._upkeep.offline.stored_values import StoredValues
from statebackend._upkeep.offline.transformed_state import Function, Into, TransformedEntries, TransformedState
from statebackend._upkeep.progress import Meter, Tell, reading
from statebackend._upkeep.read_commit import open_commit
from statebackend.abc import Clock, ObjectStore, Serializer
from statebackend.abc.clock import SystemClock
from statebackend.errors import FencedError, InputError
from statebackend.ids import CheckpointId, Key, StateDescriptor, all_key_groups
from statebackend.settings import Settings


class TransformReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a transformation, or of a dry run.

    `keys_read`: the keys of `state` before. `keys`: those that were written, by state. Of the keys read `unchanged` are
    as they were, and for `dropped` the function returned nothing. `collisions`: how often it returned a key that was
    there already, with `collision` as an example; only a dry run has any, and a real one would be refused.
    """

    job: str
    state: str
    read_id: CheckpointId
    dry_run: bool
    keys_read: int
    keys: Mapping[str, int]
    unchanged: int
    dropped: int
    collisions: int = 0
    collision: tuple[str, Key] | None = None
    checkpoint_id: CheckpointId | None = None
    bytes_read: int = 0
    bytes_written: int = 0
    seconds: float = 0.0
    requests: int = 0


async def transform(
    settings: Settings,
    state: str,
    function: Function,
    *,
    type: type[Any] | Serializer[Any] | None = None,  # noqa: A002  # as users call what they declare a state with
    migrate: Upcast | Sequence[Upcast] = (),
    new_states: str | Sequence[str] = (),
    checkpoint_id: int | None = None,
    savepoint: str | None = None,
    dry_run: bool = False,
    store: ObjectStore | None = None,
    clock: Clock | None = None,
    tell: Tell = lambda _: None,
) -> TransformReport:
    """Give each key of a state to `function`, and commit what it returns in the place of the state.

        def by_customer(key, order):            # keys were (customer, order id)
            yield key[0], order                 # one pair or several; or ("archive", key, value) for another state

        await sb.transform(settings, "orders", by_customer, new_states=["archive"])

    The function is called once for each key, in a thread, in the order of key groups, also for values that have
    expired and were not dropped yet. A value is a list for a list, a dict for a map, and for a row of columns; a list
    of times for timers. To change values give the state's `type`, and `migrate` as it is declared; without these a
    value is plain, and can only be moved or dropped. Columns need none. `new_states` names states that the job does not
    have yet: each is made when the function first names it, of the same type. A dry run calls the function and counts.

    Everything is read into tables of the kind that `settings.table` names, and written again. Stop the stream first: a
    transformation fences a writer that has the job open. The state is that of the newest checkpoint, of `checkpoint_id`
    or of `savepoint`; other checkpoints and savepoints stay as they are.

    Raises `InputError` for a state that does not exist or has no keys, a new one that exists, two equal keys in one
    state, a state of another type, a value that may not be changed, what is no pair and no triple with the name of a
    state, and where the function fails, with its error as the cause; `StateTypeError`, `KeyTypeError`,
    `ValueEncodeError`; `FencedError` if another writer opened the job meanwhile; and as `open_backend` and
    `StateBackend.checkpoint` do. A failed or cancelled call has changed nothing: call it again.
    """
    clock = SystemClock() if clock is None else clock
    begun_s = clock.monotonic()
    async with open_job_primary(settings, store) as primary:
        base, _ = await primary.find(checkpoint_id=checkpoint_id, savepoint=savepoint)
    found = _named(state, base)
    added = _new_names([new_states] if isinstance(new_states, str) else new_states, base)
    opening = open_offline(
        msgspec.structs.replace(settings, max_parallelism=base.max_parallelism),
        commits=not dry_run,
        checkpoint_id=checkpoint_id,
        savepoint=savepoint,
        store=store,
        clock=clock,
    )
    async with opening as opened:
        requests = opened.primary.spending.requests
        values = None if type is None else Values(type, migrate=migrate)
        once = _Transforming(opened, found, values, function, new_states=added, tell=tell)
        report = await once.run(await opened.job.look(), dry_run=dry_run)
        spent = opened.primary.spending.since(requests)
    return msgspec.structs.replace(report, seconds=clock.monotonic() - begun_s, requests=spent.requests.total())


class _Transforming:
    """Transforms one state of one job, once."""

    def __init__(
        self,
        opened: OfflineJob,
        state: StateDescriptor,
        values: Values[Any] | None,
        function: Function,
        *,
        new_states: frozenset[str],
        tell: Tell,
    ) -> None:
        self._opened = opened
        if values is not None and state.kind != COLUMNAR:
            state = described(state, 0, state.name, declaration_of(state.kind, values, state.key_schema))
        self._state = state
        self._values = values
        self._function = function
        self._new_states = new_states
        self._tell = tell

    async def run(self, position: Position, *, dry_run: bool) -> TransformReport:
        """Transform it, and commit unless it is a dry run. Raises as `transform`."""
        opened, base = self._opened, position.base
        assert base is not None, "it was just found"
        async with AsyncExitStack() as stack:
            opening = open_commit(
                opened.settings,
                opened.primary.store,
                base.states,
                at_hand=opened.job.log.take_body(base),
                threads=opened.threads,
                clock=opened.clock,
            )
            states, restore = await stack.enter_async_context(opening)
            bytes_read = await self._read(base, states, restore)
            tables = await stack.enter_async_context(open_tables(opened.settings, states.key_groups, opened.threads))
            made = self._transformed(states, tables.open_table, refuses=not dry_run)
            meter = Meter("transforming", states.sizes[self._state.name], self._tell)
            steps = made.steps()
            while (count := await opened.threads.cpu(next, steps, None)) is not None:
                meter.step(count, changes=count, size_bytes=0)
            report = TransformReport(
                job=base.job,
                state=self._state.name,
                read_id=base.checkpoint_id,
                dry_run=dry_run,
                keys_read=made.keys_read,
                keys=dict(made.keys),
                unchanged=made.unchanged,
                dropped=made.dropped,
                collisions=made.collisions,
                collision=made.collision,
                bytes_read=bytes_read,
            )
            if dry_run:
                return report
            made.finish()
            claimed = await opened.job.claim(position)
            if claimed.base is None or claimed.base.stamp != base.stamp:
                raise FencedError("the job was committed to meanwhile: stop its stream, and transform again")

            async def write(uploads: Uploads) -> Contents:
                ranges = await write_bases(
                    states,
                    [Owner(part.key_groups, part.operator) for part in base.ranges],
                    uploads,
                    threads=opened.threads,
                    segment_bytes_max=base_segment_bytes(opened.settings.in_flight_bytes_max),
                    meter=Meter("writing", base.max_parallelism, self._tell),
                )
                transformed = tuple(sorted({self._state.name, *report.keys}))
                return Contents(ranges, states.descriptors, transformed=transformed)

            new_id, uploads = await opened.commit(claimed, write)
        return msgspec.structs.replace(report, checkpoint_id=new_id, bytes_written=uploads.written[1])

    async def _read(self, base: Commit, states: KeyedStates, restore: Restore) -> int:
        owned = all_key_groups(base.max_parallelism)
        report = await restore.run(base, owned, states.replay, reading(base, self._tell))
        return report.bytes_local + report.bytes_primary

    def _transformed(self, states: KeyedStates, open_table: OpenTable, *, refuses: bool) -> TransformedState:
        into = Into(states, self._new_states, open_table, refuses=refuses)
        if self._state.kind == COLUMNAR:
            columns: Any = importlib.import_module("statebackend._upkeep.offline.transformed_columns")  # needs an extra
            return cast("TransformedState", columns.TransformedColumns(into, self._state, self._function))
        return TransformedEntries(into, self._state, self._function, StoredValues(self._state, self._values))


def _named(name: str, commit: Commit) -> StateDescriptor:
    """The state of this name that has keys. Raises `InputError`."""
    known = {each.name: each for each in commit.states if mode_of(each.kind) is None}
    if not isinstance(cast("object", name), str) or name not in known:
        raise InputError("the job has no state of that name that has keys", state=name, known=", ".join(sorted(known)))
    return known[name]


def _new_names(names: Sequence[str], commit: Commit) -> frozenset[str]:
    """Raises `InputError` for what names no state, or one that the job has."""
    check_list(names, "names of new states")
    for name in names:
        if type(name) is not str or not name or not name.isprintable():
            raise InputError("a state's name must be a str of printable characters", name=ascii(name))
        if any(each.name == name for each in commit.states):
            raise InputError("the job has this state already: leave it out of new_states", state=name)
    return frozenset(names)
