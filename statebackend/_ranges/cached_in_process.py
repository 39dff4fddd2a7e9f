"""The states of ranges that this process keeps in memory between two attempts."""

from collections.abc import AsyncGenerator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from statebackend._backend.tables import HEAP, Tables
from statebackend._checkpoint.lineage import Lineage, bases_id, missing
from statebackend._codec.commit import Commit
from statebackend._ranges.contribution import Found
from statebackend._state.declared import KeyedStates
from statebackend._tables.table import AnyTable, OpenTable
from statebackend.ids import ChangeSetHandle, Epoch, KeyGroupRange, RangeState, RocksDBBase
from statebackend.settings import Settings

RangeName = tuple[str, str, int, KeyGroupRange]
"""The primary, the job in it, into how many key groups that is cut, and the range."""


def range_name(settings: Settings, key_groups: KeyGroupRange) -> RangeName:
    """What a kept state is of. Whether it is of use is told by its lineage."""
    return settings.primary, settings.job, settings.max_parallelism, key_groups


class KeptTables:
    """The tables of a range by the ids of their states: an `OpenTable` that gives one away that there is already."""

    def __init__(self, open_table: OpenTable) -> None:
        self.tables: Final[dict[int, AnyTable]] = {}
        self._open_table = open_table

    def __call__(self, heap: type[AnyTable], state_id: int) -> AnyTable:
        if state_id not in self.tables:
            self.tables[state_id] = self._open_table(heap, state_id)
        return self.tables[state_id]


class KeptRange(msgspec.Struct, frozen=True):
    """The state of a range as an attempt has left it, which may have won or not.

    `states` are the views that the attempt had on `tables`, and are as good as new for who goes on at the very commit
    that it has made, in the same epoch: `epoch`. `None` where that was another process. `changed`: the key groups that
    were changed since the bases whose `bases_id` is `bases`. `rocksdb`: the base that the tables' own files were last
    written as, or taken from.
    """

    lineage: Lineage
    tables: KeptTables
    states: KeyedStates | None
    epoch: Epoch
    bases: bytes
    changed: frozenset[int]
    rocksdb: RocksDBBase | None = None

    def changed_since(self, state: RangeState, tail: Iterable[int]) -> frozenset[int]:
        """The key groups that were changed since the bases of `state`, of which those of `tail` were not by then.

        Where others have written bases meanwhile, all that the changelog may have changed.
        """
        if bases_id(state.bases, state.rocksdb) == self.bases:
            return self.changed.union(tail)
        return frozenset(group for handle in state.changelog for group in handle.key_groups)


class KeptRanges:
    """The ranges that are kept, at most so many. Whoever works on one takes it out: a state has one user at a time."""

    def __init__(self) -> None:
        self._ranges: dict[RangeName, KeptRange] = {}  # what was used last is last

    def take(self, name: RangeName) -> KeptRange | None:
        """The state, which is not kept from now on; `None` where there is none."""
        return self._ranges.pop(name, None)

    def drop_others(self, settings: Settings, owners: Collection[KeyGroupRange]) -> None:
        """Let go of ranges of this job that there are no more."""
        others = (name for name in self._ranges if name[:2] == (settings.primary, settings.job))
        for name in set(others) - {range_name(settings, key_groups) for key_groups in owners}:
            del self._ranges[name]

    def keep(self, name: RangeName, kept: KeptRange, *, ranges_max: int) -> None:
        """Keep a state, in place of an older one, and let go of what was used longest ago."""
        self._ranges.pop(name, None)
        self._ranges[name] = kept
        while len(self._ranges) > ranges_max:
            del self._ranges[next(iter(self._ranges))]


class Held:
    """What an attempt begins with: a state that lacks only the change sets `missing`, or empty tables.

    `found` says where the state was, `None` where it has to be read. `keep` says what is left behind; an attempt that
    does not say it leaves nothing.
    """

    def __init__(
        self,
        opened: Tables,
        kept: KeptRange | None = None,
        missing: Sequence[ChangeSetHandle] = (),
        found: Found | None = None,
    ) -> None:
        self.opened: Final = opened
        self.tables: Final = KeptTables(opened.open_table) if kept is None else kept.tables
        self.kept: Final = kept
        self.missing: Final = missing
        self.found: Final = found
        self.left: KeptRange | None = None

    def keep(self, left: KeptRange) -> None:
        """All of it is durable: whoever goes on from there may have it."""
        self.left = left


@asynccontextmanager
async def held_in_memory(
    ranges: KeptRanges,
    settings: Settings,
    key_groups: KeyGroupRange,
    owners: Collection[KeyGroupRange],
    base: Commit | None,
) -> AsyncGenerator[Held]:
    """The state that this process has kept, if it is of use for `base`; another one is dropped."""
    name = range_name(settings, key_groups)
    ranges.drop_others(settings, owners)
    kept = ranges.take(name)
    lacks = None if kept is None else missing(kept.lineage, base, key_groups)
    held = Held(HEAP) if lacks is None else Held(HEAP, kept, lacks, "process")
    yield held
    if held.left is not None:
        ranges.keep(name, held.left, ranges_max=settings.ranges_cached_max)
