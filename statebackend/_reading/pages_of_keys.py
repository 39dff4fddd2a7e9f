"""Reads the rows of a few keys from bases in pages: what the commit does not prove is not read, nor are other pages.

ends, heads and tails of a segment     as for a job that looks up in it far away: `FarRuns`
pages of the keys                      by a look-up, which is begun again whenever it has asked for unknown bytes
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from statebackend._checkpoint.far_runs import REQUEST_BYTES, REQUESTS_AT_ONCE, FarRuns
from statebackend._codec.change_sets.changes import Changes
from statebackend._codec.change_sets.column_changes import Typed
from statebackend._codec.change_sets.paged_changes import PagedChanges
from statebackend._codec.columns import packed
from statebackend._columns.keys import HashedKeys, count_of, hash_parts
from statebackend._reading.rows.merged_rows import NewestRows
from statebackend._runs.far_pages import FarRange
from statebackend._runs.page_map import PageMap, PlacedPart, in_order, in_order_of_pages
from statebackend._runs.run_file import proper
from statebackend._tasks import in_order as in_order_of
from statebackend._threads import WorkerThreads
from statebackend.abc import ObjectStore
from statebackend.errors import CorruptSegmentError, ObjectNotFoundError
from statebackend.ids import Base, Handle
from statebackend.settings import Settings

SHARE_MAX: Final = 0.5
"""Where more of a segment would have to be read to prove its tails, it is read whole."""


def may_be_in_pages(settings: Settings) -> bool:
    """True if columnar states of the job may be over runs."""
    return settings.table == "runs" or settings.state_memory_bytes > 0


class _WantedError(Exception):
    """Bytes are wanted that were not fetched. Never leaves this module."""

    def __init__(self, ranges: Sequence[FarRange]) -> None:
        super().__init__(ranges)
        self.ranges: Final = ranges


class _Answers:
    """The answers to each request so far, which may be sent again if the first one was damaged."""

    def __init__(self) -> None:
        self.fetched: Final = dict[FarRange, list[bytes]]()
        self._asked = Counter[FarRange]()

    def begin(self) -> None:
        """Nothing has to be opened."""

    def get(self, file: Handle) -> bytes:
        """Never called: no file is mended here."""
        raise NotImplementedError

    def begin_again(self) -> None:
        """A look-up asks from the first request on."""
        self._asked.clear()

    def get_ranges(self, ranges: Sequence[FarRange], take: Callable[[int, bytes], None]) -> None:
        """As `ReadsApart.get_ranges`, of what is there. Raises `_WantedError` for the rest."""
        wanted = [each for each in ranges if self._asked[each] == len(self.fetched.get(each, ()))]
        if wanted:
            raise _WantedError(wanted)
        for number, each in enumerate(ranges):
            answer = self.fetched[each][self._asked[each]]
            self._asked[each] += 1
            take(number, answer)


class PagesOfKeys:
    """Reads in the primary of a job. `state_id`: the columnar state that the keys are of."""

    def __init__(self, primary: ObjectStore, state_id: int, *, max_parallelism: int, threads: WorkerThreads) -> None:
        self._primary = primary
        self._state_id = state_id
        self._max_parallelism = max_parallelism
        self._threads = threads

    async def rows(self, base: Base, merge: NewestRows) -> Sequence[Changes] | None:
        """The rows of the keys that are wanted of the base; `None` where all of it has to be read, or better is.

        Raises `CorruptSegmentError` for a damaged page, and what the store raises.
        """
        if (keys := merge.wanted) is None or count_of(keys) * REQUEST_BYTES > base.segment.length:
            return None
        answers = _Answers()
        try:
            found = await FarRuns(self._primary, answers, threads=self._threads).open(base.segment, share_max=SHARE_MAX)
        except (CorruptSegmentError, ObjectNotFoundError):  # the whole says what is wrong with it
            return None
        if found is None or isinstance(found, bytes):
            return None
        run, _ = found
        parts = [part for part in run.parts if part.state_id == self._state_id]
        if not parts or not in_order(parts):
            return None
        pages = PageMap(
            [PlacedPart(part, base.key_groups, is_whole=False) for part in parts],
            max_parallelism=self._max_parallelism,
        )

        def look_up() -> Sequence[Changes]:
            answers.begin_again()
            sought = in_order_of_pages(HashedKeys(keys, hash_parts(keys)), self._max_parallelism)
            return [
                _detached(proper(each.key, partial(PagedChanges.of_rows, self._state_id, each.rows)))
                for each in pages.find(sought)
            ]

        while True:
            try:
                return await self._threads.cpu(look_up)
            except _WantedError as error:
                await self._fetch(error.ranges, answers)

    async def _fetch(self, ranges: Sequence[FarRange], answers: _Answers) -> None:
        async def fetch(each: FarRange) -> bytes:
            return await self._primary.get_range(*each)

        async def keep(each: FarRange, data: bytes) -> None:
            answers.fetched.setdefault(each, []).append(data)

        await in_order_of(ranges, fetch, keep, concurrency_max=REQUESTS_AT_ONCE)


def _detached(changes: PagedChanges) -> PagedChanges:
    """The same rows, in memory of their own: what is found shares it with the next."""
    return PagedChanges(
        changes.state_id,
        changes.groups,
        [Typed(each.type, packed(each.column)) for each in changes.keys],
        {name: Typed(each.type, packed(each.column)) for name, each in changes.columns.items()},
        hashes=changes.hashes,
    )
