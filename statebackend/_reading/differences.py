"""Compares two checkpoints of a job, key by key."""

import datetime as dt
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Final, Literal, cast

import msgspec

from statebackend._codec.commit import Commit
from statebackend._codec.plain import plain
from statebackend._columns.arrow import RecordBatch, plain_of
from statebackend._log.position import FoundCommit
from statebackend._reading.asked_of_state import can_read, check_known
from statebackend._reading.opened_state import open_batches_of
from statebackend._reading.reading_reports import Difference
from statebackend._reading.rows.layouts import KEY, KEY_GROUP, VALUE
from statebackend._reading.what_to_read import AskedOfState
from statebackend._state.declared import COLUMNAR
from statebackend._state.values import Upcast
from statebackend._upkeep.job_primary import JobPrimary, open_job_primary
from statebackend._upkeep.sizes import sizes_by_state
from statebackend.abc import ObjectStore
from statebackend.errors import InputError
from statebackend.ids import KeyGroupRange, StateDescriptor
from statebackend.settings import MiB, Settings

HELD_BYTES_MAX: Final = 256 * MiB
"""About as much memory as the values of one checkpoint take that are compared at a time, as text in JSON."""
HELD_KEY_BYTES: Final = 256
"""About as much memory as a key takes there, beside its value."""
TEXT_RATIO: Final = 2
"""A value as text in JSON is about as many times as long as it is stored, before compression."""
STORED_RATIO: Final = 4
"""The same, with its key, for the compressed bytes of all states, where a commit does not say how large each is."""

Checkpoint = int | str | dt.datetime
"""The id of a checkpoint, the name of a savepoint, or a moment."""
Migrate = Mapping[str, Upcast | Sequence[Upcast]]
"""Of some states, by their names, as in their declarations."""


async def diff(
    settings: Settings,
    before: Checkpoint,
    after: Checkpoint,
    *,
    states: Sequence[str] = (),
    migrate: Migrate = MappingProxyType({}),
    store: ObjectStore | None = None,
) -> AsyncIterator[Difference]:
    """Yield what is different `after` from `before`: checkpoints by their ids, or savepoints by their names;
    an aware `datetime` stands for the newest checkpoint that is not later.

    State by state, so many key groups at a time that the values of one checkpoint take about 256 MiB of memory, beside
    what `read_state` takes; twice as much if all are different. The changelogs are read once for each such part, whose
    differences come in the order of their keys. Operator state, which has no keys, is left out.

    Where the type of a state has changed in between, the values of both are compared as the later type reads them, so
    that a key nobody wrote is no difference. `migrate`, by the name of a state, is that of its declaration. Without it
    values of two versions are compared as they are, each by the type of its own checkpoint.

    Raises `InputError` if the two have other numbers of key groups, and as `read_state`.
    """
    if not isinstance(migrate, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError("diff takes `migrate` by the name of the state: give a dict", migrate=migrate)
    async with open_job_primary(settings, store) as primary:
        named = [each for each in (before, after) if not isinstance(each, dt.datetime)]
        by_name = iter(await primary.positions.find_each(named) if named else ())
        found = [
            await primary.find_at(each) if isinstance(each, dt.datetime) else next(by_name) for each in (before, after)
        ]
        async for difference in _differences(primary, found, states, migrate):
            yield difference


async def _differences(
    primary: JobPrimary, found: Sequence[FoundCommit], states: Sequence[str], migrate: Migrate
) -> AsyncIterator[Difference]:
    commits = [commit for commit, _ in found]
    if commits[0].max_parallelism != commits[1].max_parallelism:
        raise InputError(
            "the checkpoints have other numbers of key groups, so none has the same keys in both: take two of one",
            before=commits[0].max_parallelism,
            after=commits[1].max_parallelism,
        )
    known = [{each.name: each for each in commit.states if not each.kind.startswith("operator")} for commit in commits]
    names = sorted({**known[0], **known[1]})
    check_known("state", states, names)
    check_known("state", list(migrate), names)
    for name in states or names:
        upcasts = migrate.get(name, ())
        for groups in _parts(commits, name):
            asked = AskedOfState(key_groups=groups, key_as_json=True, migrate=upcasts)
            part = _Part()
            alike = _alike(*(own.get(name) for own in known), has_upcasts=bool(asked.migrate))
            for one, state, take in zip(found, alike, (part.take_before, part.take_after), strict=True):
                if state is not None:
                    async with open_batches_of(one, state, asked, primary) as batches:
                        async for batch in batches:
                            take(_values(state, batch))
            for difference in part.differences(name):
                yield difference


def _alike(
    before: StateDescriptor | None, after: StateDescriptor | None, *, has_upcasts: bool
) -> tuple[StateDescriptor | None, StateDescriptor | None]:
    """The state of both commits, as the later declaration of the two has it, if that reads what both have written."""
    if before is None or after is None or (before.version != after.version and not has_upcasts):
        return before, after
    if can_read(after, before):
        return msgspec.structs.replace(after, state_id=before.state_id), after
    if can_read(before, after):
        return before, msgspec.structs.replace(before, state_id=after.state_id)
    return before, after


def _parts(commits: Sequence[Commit], name: str) -> Iterator[KeyGroupRange]:
    """Ranges of key groups to compare one after the other: for each one the changelogs are read once more."""
    groups = commits[0].max_parallelism
    count = min(groups, 1 + max(_held_bytes(commit, name) for commit in commits) // HELD_BYTES_MAX)
    ends = [groups * place // count for place in range(count + 1)]
    return (KeyGroupRange(first, end - 1) for first, end in pairwise(ends))


def _held_bytes(commit: Commit, name: str) -> int:
    """About as much memory as all keys and values of the state take while they are compared."""
    sizes = sizes_by_state(commit)
    for state in commit.states:
        if state.name == name and (size := sizes.get(state.state_id)) is not None and not size.is_estimate:
            return size.keys * HELD_KEY_BYTES + size.size_bytes * TEXT_RATIO
    return sum(handle.length for part in commit.ranges for handle in part.objects()) * STORED_RATIO


class _Part:
    """Compares one range of key groups. The values are held as text: it is shorter than they are as objects."""

    def __init__(self) -> None:
        self._before: dict[str, bytes] = {}  # those that the checkpoint after has not, or was not read for yet
        self._changed: list[tuple[str, bytes | None, bytes]] = []

    def take_before(self, values: Iterable[tuple[str, bytes]]) -> None:
        """Some keys and values of the checkpoint before. All of them come first."""
        self._before.update(values)

    def take_after(self, values: Iterable[tuple[str, bytes]]) -> None:
        """Some of the checkpoint after."""
        for key, new in values:
            old = self._before.pop(key, None)
            if old is None or (old != new and msgspec.json.decode(old) != msgspec.json.decode(new)):  # -0.0 is 0.0
                self._changed.append((key, old, new))

    def differences(self, name: str) -> Iterator[Difference]:
        """Those that were found, by their keys."""
        removed = [(key, old, None) for key, old in self._before.items()]
        for key, old, new in sorted([*self._changed, *removed], key=itemgetter(0)):
            change: Literal["added", "changed", "removed"]
            change = "added" if old is None else "removed" if new is None else "changed"
            yield Difference(name, change, msgspec.json.decode(key), _decoded(old), _decoded(new))


def _decoded(text: bytes | None) -> Any:
    return None if text is None else msgspec.json.decode(text)


def _values(state: StateDescriptor, batch: RecordBatch) -> Iterator[tuple[str, bytes]]:
    """The keys and values, all as text in JSON. Equal ones are equal texts."""
    for row in plain_of(batch):
        key, _ = row.pop(KEY), row.pop(KEY_GROUP)
        if state.kind == COLUMNAR:
            parts = list(cast("dict[str, Any]", key).values()) if isinstance(key, dict) else key
            key = msgspec.json.encode(plain(parts)).decode()
        yield key, msgspec.json.encode(plain(_ordered(row if state.kind == COLUMNAR else row[VALUE])))


def _ordered(value: Any) -> Any:
    """The same with the pairs of each map, which Arrow has as a list of tuples, in one order: a map has none."""
    if isinstance(value, dict):
        return {name: _ordered(each) for name, each in cast("dict[str, Any]", value).items()}
    if not isinstance(value, list | tuple):
        return value
    found = [_ordered(each) for each in cast("Sequence[Any]", value)]
    is_map = isinstance(value, list) and any(isinstance(each, tuple) for each in cast("Sequence[Any]", value))
    return sorted(found, key=repr) if is_map else found
