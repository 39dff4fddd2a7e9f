"""The states of ranges that this process caches in memory between two attempts.

An attempt takes the cached state out, and puts its own in when all of it is durable. In between nobody else finds one:
a state has one user at a time, and an attempt that fails leaves nothing.
"""

from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from statebackend._backend.tables import Tables
from statebackend._checkpoint.lineage import Lineage, bases_id, missing, runs_id
from statebackend._checkpoint.rescale import range_of
from statebackend._codec.commit import Commit
from statebackend._ranges.contribution import Found
from statebackend._state.declared import KeyedStates
from statebackend._tables.table import EntryTable, OpenTable, Table
from statebackend.ids import ChangeSetHandle, Epoch, KeyGroupRange, RangeState, RocksDBBase
from statebackend.settings import Settings

RangeName = tuple[str, str, int, KeyGroupRange]
"""The primary, the job in it, into how many key groups that is cut, and the range."""


def range_name(settings: Settings, key_groups: KeyGroupRange) -> RangeName:
    """The name that a cached state goes by. Whether an attempt can use the state is told by its lineage."""
    return settings.primary, settings.job, settings.max_parallelism, key_groups


class CachedTables:
    """The tables of a range by the ids of their states: an `OpenTable` that returns a table opened before."""

    def __init__(self, open_table: OpenTable) -> None:
        self.tables: Final[dict[int, Table]] = {}
        self._open_table = open_table

    @property
    def are_in_files(self) -> bool:
        """False if one of them lies in memory even where the others are files, as columns do."""
        return all(isinstance(table, EntryTable) for table in self.tables.values())

    def __call__(self, heap: Callable[[], Table], state_id: int) -> Table:
        if state_id not in self.tables:
            self.tables[state_id] = self._open_table(heap, state_id)
        return self.tables[state_id]


class RunsLeft(msgspec.Struct, frozen=True):
    """The files that an attempt's tables look up in, `found`, and those that it has `made`, each by their `runs_id`.

    `found` is `None` if all is in memory, and nobody looks up.
    `take_over` has the tables look up in those that were made, which nobody may do before a commit lists them.
    """

    found: bytes | None
    made: bytes
    take_over: Callable[[], None] | None


class CachedRange(msgspec.Struct, frozen=True):
    """The state of a range as an attempt left it, whether that attempt won or not.

    `states` are the attempt's views on `tables`, `None` if another process cached them. They can be used again only by
    an attempt that continues from exactly the commit that this one made, in the same epoch: `epoch`. `changed`: the key
    groups changed since the bases whose `bases_id` is `bases`. `rocksdb`: the base that the tables' own files were last
    written as, or taken from. `runs`: of tables over runs.
    """

    lineage: Lineage
    tables: CachedTables
    states: KeyedStates | None
    epoch: Epoch
    bases: bytes
    changed: frozenset[int]
    rocksdb: RocksDBBase | None = None
    runs: RunsLeft | None = None

    def looks_up_in(self, state: RangeState, *, over_runs: bool) -> bool:
        """True if the tables are `over_runs`, and look up in the files that `state` lists; or neither.

        They are told if these are the ones that the attempt has made. If another one has made them, opening those is
        quick, and the old ones are no longer kept.
        """
        if self.runs is None or not over_runs:
            return (self.runs is not None) is over_runs
        listed = runs_id(state)
        if listed == self.runs.made and self.runs.take_over is not None:
            self.runs.take_over()
            return True
        return self.runs.found is None or listed == self.runs.found

    def changed_since(self, state: RangeState, tail: Iterable[int]) -> frozenset[int]:
        """The key groups changed since the bases of `state`; `tail`: those that were changed after this was cached.

        If another attempt has written bases meanwhile, every key group that the changelog may have changed.
        """
        if bases_id(state.bases, state.rocksdb) == self.bases:
            return self.changed.union(tail)
        return frozenset(group for handle in state.changelog for group in handle.key_groups)


class CachedRanges:
    """The cached ranges of one process, least recently used first."""

    def __init__(self) -> None:
        self._ranges: dict[RangeName, CachedRange] = {}

    def take(self, name: RangeName) -> CachedRange | None:
        """Remove the state from the cache and return it; `None` if there is none."""
        return self._ranges.pop(name, None)

    def drop_others(self, settings: Settings, owners: Collection[KeyGroupRange]) -> None:
        """Drop the ranges of this job that no owner has any more: after a rescale their states are garbage."""
        others = (name for name in self._ranges if name[:2] == (settings.primary, settings.job))
        for name in set(others) - {range_name(settings, key_groups) for key_groups in owners}:
            del self._ranges[name]

    def put(self, name: RangeName, cached: CachedRange, *, ranges_max: int) -> None:
        """Cache a state in place of an older one, and drop the least recently used beyond `ranges_max`."""
        self._ranges.pop(name, None)  # or else it would stay where it was in the order
        self._ranges[name] = cached
        while len(self._ranges) > ranges_max:
            del self._ranges[next(iter(self._ranges))]


class Start:
    """The start of an attempt: a cached state that lacks only the change sets `missing`, or empty tables.

    `found` says where the state was, `None` if it has to be read. An attempt that succeeds calls `cache`; what a failed
    one did to the tables is never used again.
    """

    def __init__(
        self,
        opened: Tables,
        cached: CachedRange | None = None,
        missing: Sequence[ChangeSetHandle] = (),
        found: Found | None = None,
    ) -> None:
        self.opened: Final = opened
        self.tables: Final = CachedTables(opened.open_table) if cached is None else cached.tables
        self.cached: Final = cached
        self.missing: Final = missing
        self.found: Final = found
        self.left: CachedRange | None = None

    def cache(self, left: CachedRange) -> None:
        """Leave this state for the next attempt. All of it has to be durable."""
        self.left = left


@asynccontextmanager
async def start_from_process(
    ranges: CachedRanges,
    settings: Settings,
    key_groups: KeyGroupRange,
    owners: Collection[KeyGroupRange],
    base: Commit | None,
    *,
    tables: Tables,
) -> AsyncGenerator[Start]:
    """The state that this process has cached, if it leads to `base`; otherwise empty `tables`, in memory or over runs.

    A cached state that does not fit is dropped: it was taken out above, and only a later attempt puts one back.
    """
    name = range_name(settings, key_groups)
    ranges.drop_others(settings, owners)
    cached = ranges.take(name)
    lacks = None if cached is None else missing(cached.lineage, base, key_groups)
    if cached is not None and lacks is not None:
        is_fit = cached.looks_up_in(range_of(base, key_groups), over_runs=tables.are_over_runs)
        lacks = lacks if is_fit else None
    start = Start(tables) if lacks is None else Start(tables, cached, lacks, "process")
    yield start
    if start.left is not None:
        ranges.put(name, start.left, ranges_max=settings.ranges_cached_max)
