"""A log of any length is cleared in bounded memory, and nothing that is listed grows with the age of a job."""

from collections import Counter
from collections.abc import AsyncIterator, Collection

from hypothesis import given
from hypothesis import strategies as st

from statebackend._log.sweeping.long_log import BLOCKS_PER_PART, LongLog, plan_clearing
from statebackend._log.sweeping.retention import Ages, plan_log
from statebackend.abc import ObjectInfo
from statebackend.objectstore import MemoryStore
from tests.log.swept import HOUR_S, Job, forget, put

NOW_S = 100_000.0
AGES = Ages(newest_s=NOW_S, now_s=NOW_S, min_age_s=0.0)
OLD_S, YOUNG_S = NOW_S - 2 * HOUR_S, NOW_S - 10.0


def blocks_of(times: dict[int, float], part_entries: int) -> LongLog:
    log = LongLog(part_entries)
    for sequence, modified_s in sorted(times.items()):
        log.add(sequence, modified_s)
    return log


def numbers(runs: Collection[range]) -> list[int]:
    return [sequence for run in runs for sequence in run]


@given(
    times=st.dictionaries(st.integers(0, 60), st.sampled_from([OLD_S, OLD_S, OLD_S, YOUNG_S]), min_size=1),
    part_entries=st.integers(1, 64),
    data=st.data(),
)
def test_clearing_takes_nothing_that_a_sweep_of_the_whole_would_keep(
    times: dict[int, float], part_entries: int, data: st.DataObject
) -> None:
    """And each entry goes or stays; what goes is below the floor, which is no higher than that of the whole."""
    retained = data.draw(st.sets(st.sampled_from(sorted(times)), max_size=3))
    pinned = data.draw(st.sets(st.integers(0, 70), max_size=4))
    log, end = blocks_of(times, part_entries), max(times)
    assert [sequence for sequence in range(-1, 72) if sequence in log] == sorted(times)
    plan = plan_clearing(log.blocks, retained=retained, pinned=pinned, end=end, ages=AGES)
    whole = plan_log(times, retained=retained, pinned=dict.fromkeys(pinned, "pinned"), ages=AGES)
    removed, kept = numbers(plan.remove), numbers(plan.keep)
    assert removed == sorted(removed)
    assert sorted(removed + kept) == sorted(times)
    assert set(removed) <= set(whole.remove)
    assert all(sequence < plan.floor for sequence in removed)
    assert plan.floor <= whole.floor


def test_a_log_without_gaps_goes_up_to_its_first_young_block() -> None:
    """A clearing that takes nothing would be safe as well, and of no use."""
    times = {sequence: OLD_S if sequence < 900 else YOUNG_S for sequence in range(1000)}
    plan = plan_clearing(blocks_of(times, 160).blocks, retained={999}, pinned={5}, end=999, ages=AGES)
    assert numbers(plan.remove) == [sequence for sequence in range(900) if sequence != 5]


def test_a_week_of_entries_takes_the_memory_of_a_thousand_blocks() -> None:
    """60,000 entries in parts of 1,600, as 600,000 in parts of 16,000."""
    log = LongLog(1_600)
    for sequence in range(60_000):
        log.add(sequence, OLD_S)
    assert len(log.blocks) == 60_000 // 1_600 * BLOCKS_PER_PART + BLOCKS_PER_PART // 2


class CountedListings(MemoryStore):
    """Counts the objects that are listed."""

    listed = 0

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        async for info in super().list(prefix):
            self.listed += 1
            yield info


async def test_nothing_that_is_listed_grows_with_the_age_of_a_job() -> None:
    """Eight hours of a job that is swept each hour: every directory, and every listing, is as in the fourth hour.

    Without bases: they would end a changelog that `forget` has ended before, and the next change set with it.
    """
    job = Job(sweep_interval_s=0.0, materialize_interval_s=0.0)
    job.store = store = CountedListings(clock=job.clock)
    largest: list[int] = []
    listings: list[int] = []
    async with job.backend() as backend:
        for _hour in range(8):
            for value in range(10):
                forget(backend)
                await put(backend, value)
                job.pass_time(HOUR_S / 10)
            largest.append(max(Counter(key.rpartition("/")[0] for key in await job.keys()).values()))
            store.listed = 0
            await job.sweep(min_age_s=HOUR_S)
            listings.append(store.listed)
    assert len(set(largest[3:])) == len(set(listings[3:])) == 1
    assert largest[-1] <= 2 * 10 + 2  # the hour that stays, and the hour since the last sweep


async def test_nothing_grows_where_bases_take_over_the_changelog() -> None:
    """What stays was listed by a commit of the hour that stays, or of the one before, or the next one may list it."""
    job = Job(sweep_interval_s=0.0)
    before: set[str] = set()
    async with job.backend() as backend:
        for _hour in range(8):
            listed: set[str] = set()
            for value in range(10):
                await put(backend, value)
                commits = await job.commits()
                listed |= commits[max(commits)].segments()
                job.pass_time(HOUR_S / 10)
            await job.sweep(min_age_s=HOUR_S)
            left = {*await job.keys("segments/")}
            assert len(left - listed - before) <= 1  # a base just written
            before = listed
