"""Clears a log that was not swept for long, in memory that does not grow with its length: part by part, oldest first.

    list into blocks -> plan -> raise the floor above all parts -> look for claims -> part after part: read, delete

What entries point into goes with the last of them: what a part points into is compared with the next part, and with
what stays. None of it can be opened by then, since all lies below the floor. The last part, and the hour of entries
that stays, are left to the sweep of a short log, which gives a verdict on each object.
"""

import itertools
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from statebackend._codec.commit import Commit, Entry
from statebackend._log.log_reader import LogReader
from statebackend._log.names import entry_key, sequence_of
from statebackend._log.sweeping.inventory import Inventory
from statebackend._log.sweeping.retention import ENTRY_AGE_MIN_S, Ages
from statebackend._log.sweeping.sweep_requests import SweepRequests
from statebackend._log.sweeping.thinning import FINE_S
from statebackend.errors import StoreFullError

BLOCKS_PER_PART: Final = 16


class Block(msgspec.Struct):
    """Entries that follow each other without a gap, and the newest time that one of them was made."""

    first: int
    last: int
    newest_s: float


class LongLog:
    """The entries of a log, by sequence, in blocks: a week of a commit a second takes the memory of a thousand."""

    def __init__(self, part_entries: int) -> None:
        self.blocks: Final[list[Block]] = []
        self._newest: dict[float, tuple[int, float]] = {}
        self._block_entries = max(1, part_entries // BLOCKS_PER_PART)

    def add(self, sequence: int, modified_s: float) -> None:
        """Add an entry, above all that were added before."""
        self._newest[modified_s // FINE_S] = sequence, modified_s
        block = self.blocks[-1] if self.blocks else None
        if block is None or sequence != block.last + 1 or sequence - block.first >= self._block_entries:
            self.blocks.append(Block(sequence, sequence, modified_s))
        else:
            block.last, block.newest_s = sequence, max(block.newest_s, modified_s)

    @property
    def ends(self) -> tuple[int, int] | None:
        """The lowest sequence and the highest."""
        return (self.blocks[0].first, self.blocks[-1].last) if self.blocks else None

    @property
    def sampled(self) -> Mapping[int, float]:
        """The newest entry of each stretch of time of which one may stay, and when it was made."""
        return dict(self._newest.values())

    @property
    def newest_s(self) -> float:
        """The newest time."""
        return max((block.newest_s for block in self.blocks), default=0.0)

    def __contains__(self, sequence: object) -> bool:
        if not isinstance(sequence, int):
            return False
        place = bisect_right(self.blocks, sequence, key=lambda block: block.first)
        return place > 0 and sequence <= self.blocks[place - 1].last


class ClearingPlan(msgspec.Struct, frozen=True):
    """Entries by sequence, in order: those below `floor` that go, and all that stay."""

    floor: int
    remove: tuple[range, ...]
    keep: tuple[range, ...]


def plan_clearing(
    blocks: Sequence[Block], *, retained: Iterable[int], pinned: Collection[int], end: int, ages: Ages
) -> ClearingPlan:
    """Decide which entries of a long log go: the old ones below all that is retained, but for those `pinned`.

    As `plan_log`, but a block is as young as its newest entry, and nothing above a young one goes. Pure.
    """
    young = (block.first for block in blocks if not ages.is_old(block.newest_s, at_least_s=ENTRY_AGE_MIN_S))
    floor = min((end, *retained, *itertools.islice(young, 1)))
    pins = sorted(pinned)
    below = [range(block.first, min(block.last + 1, floor)) for block in blocks if block.first < floor]
    above = [range(max(block.first, floor), block.last + 1) for block in blocks if block.last >= floor]
    kept = [range(pin, pin + 1) for pin in pins if any(pin in run for run in below)]
    return ClearingPlan(floor, tuple(piece for run in below for piece in _without(run, pins)), (*kept, *above))


def _without(run: range, pins: Sequence[int]) -> Iterator[range]:
    """The pieces of a run between these."""
    begin = run.start
    for pin in (pin for pin in pins if pin in run):
        yield range(begin, pin)
        begin = pin + 1
    yield range(begin, run.stop)


class Clearing:
    """Carries out a plan for a long log, in parts of `part_entries`."""

    def __init__(self, log: LogReader, requests: SweepRequests, *, part_entries: int, concurrency_max: int) -> None:
        self._log = log
        self._requests = requests
        self._part_entries = part_entries
        self._concurrency_max = concurrency_max

    async def run(self, plan: ClearingPlan, found: Inventory) -> int:
        """Delete all that goes, but for the last part; return how many objects went.

        Does nothing where the rest of the sweep has to find out why. Raises as `LogReader.each`.
        """
        if sum(map(len, plan.remove)) <= self._part_entries:
            return 0
        try:
            if await self._requests.raise_floor(plan.floor, found):
                return 0
            if await self._requests.wanted_again(plan.floor, found.pinned, found):
                return 0
        except StoreFullError:
            return 0
        needed = await self._pointed_into(_all(plan.keep))
        cleared, before = 0, set[str]()  # what the part before points into
        remaining = _all(plan.remove)
        part = tuple(itertools.islice(remaining, self._part_entries))
        while part:
            here = await self._pointed_into(part, doomed=frozenset(part))
            # Entries that go carry change sets too, but they go as entries.
            gone = [key for key in sorted(before - here - needed) if sequence_of(key) is None]
            cleared += len((await self._requests.delete_all(gone))[0])
            following = tuple(itertools.islice(remaining, self._part_entries))
            if not following:
                break  # left to the rest of the sweep, which tells what went
            wanted = [key for key in map(entry_key, part) if key not in needed]
            deleted, failures = await self._requests.delete_all(wanted)
            cleared += len(deleted)
            if failures:  # an entry is still there: then so must be what it points into
                break
            before, part = here, following
        return cleared

    async def _pointed_into(self, sequences: Iterable[int], *, doomed: Collection[int] = ()) -> set[str]:
        """The keys of all objects that these entries point into. Those of `doomed` may be damaged or gone."""
        found = set[str]()

        def reached(_sequence: int, entry: Entry) -> None:
            if isinstance(entry, Commit):
                found.update(entry.segments())

        await self._log.each(sequences, reached, doomed=doomed, concurrency_max=self._concurrency_max)
        return found


def _all(runs: Iterable[range]) -> Iterator[int]:
    return itertools.chain.from_iterable(runs)
