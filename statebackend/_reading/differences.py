"""Compares two checkpoints of a job, key by key."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final, Literal, cast

import msgspec

from statebackend._clock import SystemClock
from statebackend._codec.commit import Commit
from statebackend._columns.arrow import plain_of
from statebackend._reading.asked import check_known
from statebackend._reading.reader import open_batches
from statebackend._reading.reports import Difference
from statebackend._reading.rows.layouts import KEY, KEY_GROUP, VALUE, Upcast
from statebackend._state.declared import COLUMNAR
from statebackend._upkeep.primary import open_job_primary
from statebackend._upkeep.read_commit import find_commit
from statebackend._upkeep.rows import plain
from statebackend.abc import ObjectStore
from statebackend.errors import InputError
from statebackend.ids import StateDescriptor
from statebackend.settings import MiB, Settings

COMPARED_BYTES: Final = 8 * MiB
"""About as many stored bytes of both checkpoints are compared at a time."""

Checkpoint = int | str
"""The id of a checkpoint, or the name of a savepoint."""


async def diff(
    settings: Settings,
    before: Checkpoint,
    after: Checkpoint,
    *,
    states: Sequence[str] = (),
    migrate: Mapping[str, Upcast | Sequence[Upcast]] = MappingProxyType({}),
    store: ObjectStore | None = None,
) -> AsyncIterator[Difference]:
    """Yield what is different `after` from `before`: checkpoints by their ids, or savepoints by their names.

    State by state, some key groups at a time, so that the state may be larger than memory. Operator state, which has no
    keys, is left out. `migrate`, by the name of a state, is that of its declaration: it brings values of earlier
    versions to the version that each of the two checkpoints has.

    Raises `InputError` if the two have other numbers of key groups, and as `read_state`.
    """
    clock = SystemClock()
    async with open_job_primary(settings, store) as primary:
        commits = [(await find_commit(settings, primary, **_named(each), clock=clock))[0] for each in (before, after)]
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
        for groups in _parts(commits):
            found: list[Mapping[str, Any]] = []
            for each, own in zip((before, after), known, strict=True):
                found.append(
                    await _values(settings, own[name], _named(each), groups, migrate=migrate.get(name, ()), store=store)
                    if name in own
                    else {}
                )
            for difference in _differences(name, *found):
                yield difference


def _named(checkpoint: Checkpoint) -> dict[str, Any]:
    is_name = isinstance(checkpoint, str)
    return {"savepoint": checkpoint if is_name else None, "checkpoint_id": None if is_name else checkpoint}


def _parts(commits: Sequence[Commit]) -> Iterator[tuple[int, int]]:
    """Ranges of key groups to compare one after the other."""
    handles = {handle for commit in commits for part in commit.ranges for handle in part.objects()}
    groups = commits[0].max_parallelism
    count = min(groups, 1 + sum(handle.length for handle in handles) // COMPARED_BYTES)
    ends = [groups * place // count for place in range(count + 1)]
    return ((first, end - 1) for first, end in pairwise(ends))


async def _values(
    settings: Settings, state: StateDescriptor, named: Mapping[str, Any], groups: tuple[int, int], **options: Any
) -> Mapping[str, Any]:
    """The values of the keys, which are text in JSON."""
    found: dict[str, Any] = {}
    opening = open_batches(settings, state.name, key_groups=groups, key_as_json=True, **named, **options)
    async with opening as batches:
        async for batch in batches:
            for row in plain_of(batch):
                key, _ = row.pop(KEY), row.pop(KEY_GROUP)
                if state.kind == COLUMNAR:
                    parts = list(cast("dict[str, Any]", key).values()) if isinstance(key, dict) else key
                    found[msgspec.json.encode(plain(parts)).decode()] = row
                else:
                    found[key] = row[VALUE]
    return found


def _differences(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Difference]:
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        if key not in before:
            change: Literal["added", "changed", "removed"] = "added"
        elif key not in after:
            change = "removed"
        elif not _is_same(old, new):
            change = "changed"
        else:
            continue
        yield Difference(name, change, msgspec.json.decode(key), plain(old), plain(new))


def _is_same(old: Any, new: Any) -> bool:
    old, new = _ordered(old), _ordered(new)
    return bool(old == new) or repr(old) == repr(new)  # NaN is no difference


def _ordered(value: Any) -> Any:
    """The same with the pairs of each map, which Arrow has as a list of tuples, in one order: a map has none."""
    if isinstance(value, dict):
        return {name: _ordered(each) for name, each in cast("dict[str, Any]", value).items()}
    if not isinstance(value, list | tuple):
        return value
    found = [_ordered(each) for each in cast("Sequence[Any]", value)]
    is_map = isinstance(value, list) and any(isinstance(each, tuple) for each in cast("Sequence[Any]", value))
    return sorted(found, key=repr) if is_map else found
