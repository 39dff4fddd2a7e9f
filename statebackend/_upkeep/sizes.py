"""How much a commit says there is of each state, and where the state of its ranges was read from."""

from collections.abc import Iterable

import msgspec
from msgspec import UnsetType

from statebackend._checkpoint.rescale import range_of
from statebackend._codec.commit import Commit
from statebackend.ids import RestoreSource, StateSize, all_key_groups


class SizeRow(msgspec.Struct, frozen=True):
    """How much there is of a state in a range of key groups; of several states where they are only known together.

    `keys` with those whose values have expired but were not dropped yet. `size_bytes`: of the encoded values, before
    compression and without the keys. With `is_estimate` it is what RocksDB estimates, and the bytes of its files.
    """

    states: tuple[str, ...]
    key_groups: str
    keys: int
    size_bytes: int
    is_estimate: bool


class SizeTotal(msgspec.Struct, frozen=True):
    """The sizes of a state in all `ranges` that know them. `skew`: keys of the range with most over those of the mean.

    `keys` and the rest are as in `SizeRow`.
    """

    states: tuple[str, ...]
    keys: int
    size_bytes: int
    is_estimate: bool
    ranges: int
    skew: float


def size_rows(commit: Commit) -> tuple[SizeRow, ...]:
    """The sizes of each state in each range, in the order of the ranges. A range that does not know them has no row."""
    names = {state.state_id: state.name for state in commit.states}
    return tuple(
        SizeRow(
            tuple(names.get(state_id, str(state_id)) for state_id in each.states),
            str(part.key_groups),
            each.keys,
            each.size_bytes,
            each.is_estimate,
        )
        for part in commit.ranges
        if not isinstance(part.sizes, UnsetType)
        for each in part.sizes
    )


def size_totals(rows: Iterable[SizeRow]) -> tuple[SizeTotal, ...]:
    """The sizes of each state, or of states that are only known together, in all ranges."""
    found: dict[tuple[tuple[str, ...], bool], list[SizeRow]] = {}
    for row in rows:
        found.setdefault((row.states, row.is_estimate), []).append(row)
    return tuple(
        SizeTotal(
            states,
            keys := sum(row.keys for row in own),
            sum(row.size_bytes for row in own),
            is_estimate,
            len(own),
            skew=max(row.keys for row in own) * len(own) / keys if keys else 1.0,
        )
        for (states, is_estimate), own in found.items()
    )


def sizes_by_state(commit: Commit) -> dict[int, StateSize]:
    """The sizes of each state that is known by itself in every range, by its id."""
    sizes = range_of(commit, all_key_groups(commit.max_parallelism)).sizes
    if isinstance(sizes, UnsetType):
        return {}
    shared = [state for each in sizes for state in each.states]
    return {each.states[0]: each for each in sizes if len(each.states) == 1 and shared.count(each.states[0]) == 1}


def source_of(commit: Commit) -> RestoreSource | None:
    """Where an opening before this commit read the ranges from: all together, and the seconds of the slowest."""
    found = [part.restored for part in commit.ranges if not isinstance(part.restored, UnsetType)]
    if not found:
        return None
    return RestoreSource(
        sum(each.files_local for each in found),
        sum(each.files_primary for each in found),
        sum(each.bytes_local for each in found),
        sum(each.bytes_primary for each in found),
        max(each.seconds for each in found),
    )
