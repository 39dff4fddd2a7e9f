"""Commits are kept by age, thinned, below a log that stays short: who asks for one gets it, or is told it is gone."""

import math
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import statebackend as sb
from statebackend._backend.stores import threads_of
from statebackend._log.log_reader import LogReader
from statebackend._log.milestones import Milestone, floor_content, milestones_in
from statebackend._log.moments import iso_of
from statebackend._log.sweeping.log_sweep import Sweep
from statebackend._log.sweeping.retention import Ages
from statebackend._log.sweeping.thinning import COARSE_S, FINE_FOR_S, FINE_S, slots
from statebackend.errors import CheckpointNotFoundError, CorruptObjectError
from statebackend.ids import CheckpointId, CommitSequence
from statebackend.objectstore.scoped import ScopedStore
from statebackend.testing import FaultyStore
from tests.knobs import replaced
from tests.log.swept import HOUR_S, JOB, Job, put

DAY_S = 24 * HOUR_S
THREE_DAYS_S = 3 * DAY_S
MINUTES = 5


def chosen(times: Mapping[int, float], now_s: float, retained_s: float = THREE_DAYS_S) -> set[int]:
    """What a sweep keeps, where each entry is a commit."""
    ages = Ages(newest_s=now_s, now_s=now_s, min_age_s=0.0)
    return {candidates[0] for candidates in slots(times, ages=ages, retained_s=retained_s)}


@given(
    gaps=st.lists(st.floats(0.0, 20_000.0), min_size=1, max_size=60),
    looks=st.lists(st.floats(0.0, 2 * DAY_S), max_size=5),
)
def test_what_many_sweeps_keep_is_what_one_keeps(gaps: list[float], looks: list[float]) -> None:
    """So it does not matter how often a job is swept, and nothing is missed because of the sweeps before."""
    times: dict[int, float] = {}
    for sequence, gap_s in enumerate(gaps):
        times[sequence] = times.get(sequence - 1, 1_000_000.0) + gap_s
    now_s, kept = max(times.values()), dict(times)
    for look_s in looks:
        now_s += look_s
        kept = {sequence: times[sequence] for sequence in chosen(kept, now_s)}
    now_s += 1.0
    assert chosen(kept, now_s) == chosen(times, now_s)


def test_no_more_than_one_of_each_stretch_stays() -> None:
    """At a commit a second for four days: 144 of the last day, and one an hour before that."""
    times = {second: float(second) for second in range(0, int(4 * DAY_S), 60)}
    found = chosen(times, now_s=4 * DAY_S)
    assert len([each for each in found if times[each] > 3 * DAY_S]) == FINE_FOR_S / FINE_S
    assert len(found) <= FINE_FOR_S / FINE_S + 48 + 2
    older = sorted(each for each in found if times[each] < 3 * DAY_S - COARSE_S)
    assert {later - earlier for earlier, later in pairwise(older)} == {COARSE_S}
    assert min(found) >= DAY_S


async def history(job: Job, *, hours: int, sweeps: bool = True) -> dict[int, float]:
    """A commit every five minutes, and a sweep every six hours: when each id was committed."""
    made: dict[int, float] = {}
    for begin in range(0, hours, 6):
        async with job.backend() as backend:
            for _ in range(min(6, hours - begin) * 60 // MINUTES):
                made[backend.next_checkpoint_id] = job.clock.now_s
                await put(backend, backend.next_checkpoint_id)
                job.pass_time(MINUTES * 60.0)
        if sweeps:
            await job.sweep()
    return made


async def test_three_days_can_be_asked_for_and_the_log_stays_short() -> None:
    """At any moment there is a commit that is not much older, whole, by its time and by its id."""
    job = Job(checkpoints_retained_s=THREE_DAYS_S, sweep_interval_s=0.0)
    made = await history(job, hours=90)
    now_s, kept = job.clock.now_s, await job.commits()
    assert len(kept) < 144 + 48 + 6 * 60 // MINUTES
    for checkpoint_id in kept:
        assert await job.read(checkpoint_id=checkpoint_id) == checkpoint_id
    for hours_ago in (0.5, 3, 10, 23, 30, 50, 71):
        at_s = now_s - hours_ago * HOUR_S
        found = await job.read(at=at_s)
        width_s = MINUTES * 60.0 if hours_ago < 1 else FINE_S if hours_ago < 24 else COARSE_S
        assert at_s - 2 * width_s <= made[found] <= at_s
    with pytest.raises(CheckpointNotFoundError) as caught:
        await job.read(at=now_s - 80 * HOUR_S)
    oldest = min(kept)
    assert caught.value.facts["oldest_checkpoint_id"] == oldest
    assert caught.value.facts["oldest_at"] == iso_of(made[oldest])
    assert now_s - made[oldest] <= THREE_DAYS_S
    report = await sb.report(job.settings, store=job.store, clock=job.clock)
    count, size_bytes = report.verdicts["milestone"]
    assert count >= len(kept) - 80
    assert size_bytes > 0


async def test_milestones_are_verified() -> None:
    """With all that they need: damage is found that only they would meet. What is below the floor besides is not."""
    job = Job(checkpoints_retained_s=THREE_DAYS_S, sweep_interval_s=0.0)
    await history(job, hours=12)
    commits = await job.commits()
    first = min(commits)
    report = await sb.verify(job.settings, store=job.store)
    assert (report.damages, min(report.checkpoints)) == ((), first)
    newest = set[str]().union(*(commits[each].segments() for each in sorted(commits)[-3:]))
    only_old = min(commits[first].segments() - newest)
    await job.store.put(f"{JOB}/{only_old}", [b"damaged"])
    (damage,) = (await sb.verify(job.settings, store=job.store)).damages
    assert (damage.key, first in damage.checkpoints) == (only_old, True)
    floor = f"{JOB}/{max(await job.keys('swept/'))}"
    await job.store.put(floor, [b"damaged"])
    assert [each.key for each in (await sb.verify(job.settings, store=job.store)).damages] == [
        floor.removeprefix(f"{JOB}/")
    ]


async def test_without_the_setting_there_are_none_and_those_that_were_are_given_up() -> None:
    job = Job(checkpoints_retained_s=THREE_DAYS_S, sweep_interval_s=0.0)
    await history(job, hours=12)
    job.settings = replaced(job.settings, checkpoints_retained_s=0.0)
    before = await job.commits()
    await job.sweep()
    after = await job.commits()
    assert len(after) < 20 < len(before)
    gone = min(before)
    with pytest.raises(CheckpointNotFoundError):
        await job.read(checkpoint_id=gone)
    floor = max(await job.keys("swept/"))
    assert await job.store.get(f"{JOB}/{floor}") == b""


async def with_milestones(**changes: Any) -> tuple[Job, list[int]]:
    """A job with a night behind it, and the ids of its milestones, oldest first."""
    job = Job(**{"checkpoints_retained_s": THREE_DAYS_S, "sweep_interval_s": 0.0, **changes})
    await history(job, hours=8)
    job.pass_time(DAY_S)
    await job.commit(1000)
    await job.sweep()
    floor = max(await job.keys("swept/"))
    found = milestones_in(await job.store.get(f"{JOB}/{floor}"), floor)
    return job, [each.checkpoint_id for each in found.values()]


async def test_a_job_goes_on_from_a_milestone() -> None:
    """As from a savepoint: the sweeps that follow keep what the new branch needs."""
    job, ids = await with_milestones()
    async with job.backend(checkpoint_id=ids[1]) as backend:
        assert backend.value_state("n", int)["k"] == ids[1]
        await put(backend, -1)
    job.pass_time(30 * HOUR_S)
    await job.commit(-2)
    await job.sweep()
    assert await job.read() == -2
    assert await job.read(checkpoint_id=ids[0]) == ids[0]


class _AtTheFloor(FaultyStore):
    """Calls back right before or after a floor is put."""

    def __init__(self, store: Any, call: Any, *, before: bool) -> None:
        super().__init__(store, ())
        self._call, self._before = call, before

    async def put(self, key: str, body: Any) -> None:
        if "swept/" in key and self._before:
            await self._call()
        await super().put(key, body)
        if "swept/" in key and not self._before:
            await self._call()


@pytest.mark.parametrize("before", [True, False])
async def test_a_milestone_that_is_opened_while_a_sweep_gives_it_up(*, before: bool) -> None:
    """The writer is told, or the sweep stops: it never goes on from what is being deleted."""
    job, ids = await with_milestones()
    job.pass_time(4 * DAY_S)
    await job.commit(1001)
    held: list[Any] = []

    async def open_it() -> None:
        opening = job.backend(checkpoint_id=ids[0])
        with suppress(CheckpointNotFoundError):
            held.append((opening, await opening.__aenter__()))

    store = _AtTheFloor(job.store, open_it, before=before)
    report = await sb.sweep(job.settings, dry_run=False, min_age_s=0.0, store=store, clock=job.clock)
    assert (report.stopped is not None) == bool(held) == before
    for opening, backend in held:
        await put(backend, -1)
        await opening.__aexit__(None, None, None)
        assert await job.read() == -1


async def test_a_milestone_can_become_a_savepoint() -> None:
    """And is kept then, when its age is over."""
    job, ids = await with_milestones()
    await sb.savepoint(job.settings, "kept", checkpoint_id=ids[0], store=job.store)
    job.pass_time(5 * DAY_S)
    await job.commit(1001)
    await job.sweep()
    assert await job.read(savepoint="kept") == ids[0]
    with pytest.raises(CheckpointNotFoundError):
        await job.read(checkpoint_id=ids[1])


async def test_an_erasure_closes_all_milestones() -> None:
    """At once; and the next sweeps delete them. A key that only they have is looked for there."""
    job, ids = await with_milestones()
    async with job.backend() as backend:
        del backend.value_state("n", int)["k"]
        await backend.checkpoint(backend.next_checkpoint_id)
    await other_commits(job)
    report = await sb.erase(job.settings, ["k"], store=job.store, clock=job.clock)
    assert report.checkpoint_id is not None
    for asked in ({"checkpoint_id": ids[0]}, {"checkpoint_id": ids[1]}, {"at": job.clock.now_s - 20 * HOUR_S}):
        with pytest.raises(CheckpointNotFoundError):
            await job.read(**asked)
    await other_commits(job)
    assert set(ids).isdisjoint(await job.commits())
    assert (await sb.verify_erased(job.settings, ["k"], store=job.store)).holders == ()


async def other_commits(job: Job) -> None:
    """Another day, and a sweep."""
    job.pass_time(26 * HOUR_S)
    async with job.backend() as backend:
        for _ in range(3):
            backend.value_state("other", int)["x"] = backend.next_checkpoint_id
            await backend.checkpoint(backend.next_checkpoint_id)
    await job.sweep()


async def test_a_floor_that_cannot_be_read_stops_a_sweep_and_not_the_job() -> None:
    """What is needed is not known then; a sweep that keeps none by age does not ask."""
    job, ids = await with_milestones()
    floor = max(await job.keys("swept/"))
    await job.store.put(f"{JOB}/{floor}", [b"00000000 []"])
    before = await job.keys()
    with pytest.raises(CorruptObjectError, match="which older commits are kept"):
        await job.sweep()
    assert await job.keys() == before
    assert await job.read() == 1000
    with pytest.raises(CorruptObjectError):
        await job.read(checkpoint_id=ids[0])
    job.settings = replaced(job.settings, checkpoints_retained_s=0.0)
    await job.sweep()
    with pytest.raises(CheckpointNotFoundError):
        await job.read(checkpoint_id=ids[0])


async def test_a_commit_that_cannot_be_read_is_passed_over() -> None:
    """The one before it in the same stretch becomes the milestone."""
    job = Job(checkpoints_retained_s=THREE_DAYS_S, sweep_interval_s=0.0)
    made = await history(job, hours=3, sweeps=False)
    commits = await job.commits()
    damaged = min(each for each in commits if made[each] % COARSE_S >= COARSE_S - MINUTES * 60.0)
    await job.store.put(f"{JOB}/commits/{commits[damaged].sequence:012d}", [b"damaged"])
    job.pass_time(30 * HOUR_S)
    await job.commit(1000)
    await job.sweep()
    kept = await job.commits()
    assert damaged - 1 in kept
    assert await job.read(checkpoint_id=damaged - 1) == damaged - 1


async def test_claims_at_the_end_of_a_stretch_of_a_long_log_stand_for_its_commit() -> None:
    """Each names the newest commit before it, of which a long log knows nothing else."""
    job = Job(checkpoints_retained_s=THREE_DAYS_S, sweep_interval_s=0.0)
    job.pass_time(-job.clock.now_s % COARSE_S + 1.0)
    for checkpoint_id in range(12):
        await job.commit(checkpoint_id)
        for _ in range(2):
            job.pass_time(FINE_S / 4)
            async with job.backend():
                pass
        job.pass_time(COARSE_S - FINE_S / 2)
    job.pass_time(30 * HOUR_S)
    await job.commit(100)
    store = ScopedStore(job.store, f"{JOB}/")
    log = LogReader(store, JOB, threads_of(job.settings))
    await Sweep(
        store, log, checkpoints_retained=1, checkpoints_retained_s=THREE_DAYS_S, clock=job.clock, part_entries=5
    ).run(dry_run=False)
    assert set(await job.commits()) == set(range(13))


async def test_a_long_log_is_thinned_on_the_way() -> None:
    """Part by part, with the same milestones as in one go."""
    job = Job(checkpoints_retained_s=THREE_DAYS_S, sweep_interval_s=0.0)
    await history(job, hours=40, sweeps=False)
    store = ScopedStore(job.store, f"{JOB}/")
    log = LogReader(store, JOB, threads_of(job.settings))
    sweep = Sweep(
        store, log, checkpoints_retained=2, checkpoints_retained_s=THREE_DAYS_S, clock=job.clock, part_entries=50
    )
    report = await sweep.run(dry_run=False)
    assert report.cleared > 0
    kept = await job.commits()
    for hours_ago in (3, 10, 20, 30, 38):
        at_s = job.clock.now_s - hours_ago * HOUR_S
        assert (
            at_s - 2 * (FINE_S if hours_ago < 24 else COARSE_S) <= kept[await _id_at(job, at_s)].committed_at_s <= at_s
        )
    await sweep.run(dry_run=False)
    assert (await sweep.run(dry_run=True)).garbage == ()


async def _id_at(job: Job, at_s: float) -> int:
    async with job.backend(read_only=True, at=at_s) as backend:
        assert backend.newest is not None
        return backend.newest.checkpoint_id


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 2**63 - 1), st.floats(allow_nan=False)), max_size=5))
def test_a_floor_says_what_it_was_told(rows: list[tuple[int, int, float]]) -> None:
    """Whatever bit of it is flipped, it is refused."""
    given = {
        sequence: Milestone(CommitSequence(sequence), f"s{sequence}", CheckpointId(checkpoint_id), at_s)
        for sequence, checkpoint_id, at_s in rows
        if math.isfinite(at_s)
    }
    content = floor_content(given.values())
    assert milestones_in(content, "swept/1") == given
    for place in range(0, len(content), 7):
        flipped = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        with pytest.raises(CorruptObjectError):
            milestones_in(flipped, "swept/1")


async def test_two_sweeps_at_once_keep_what_can_be_opened() -> None:
    """The second begins while the first is about to delete: whatever is named and there is whole."""
    job, _ = await with_milestones()
    job.pass_time(12 * HOUR_S)
    await job.commit(1001)
    inner = sb.sweep(job.settings, dry_run=False, min_age_s=0.0, store=job.store, clock=job.clock)

    async def another() -> None:
        await inner

    store = _AtTheFloor(job.store, another, before=True)
    await sb.sweep(job.settings, dry_run=False, min_age_s=0.0, store=store, clock=job.clock)
    for checkpoint_id in await job.commits():
        assert await job.read(checkpoint_id=checkpoint_id) in (checkpoint_id, 1000, 1001)


async def test_a_sweep_stops_where_another_one_has_named_what_it_gives_up() -> None:
    """Between its floor and its deletions: a writer could open that commit, since the floor names it."""
    job, ids = await with_milestones()
    job.pass_time(12 * HOUR_S)
    await job.commit(1001)

    named = await job.store.get(f"{JOB}/{max(await job.keys('swept/'))}")

    async def another() -> None:
        """It has looked before, and puts its floor only now."""
        await job.store.put(f"{JOB}/{max(await job.keys('swept/'))}", [named])

    less = replaced(job.settings, checkpoints_retained_s=30 * HOUR_S)
    store = _AtTheFloor(job.store, another, before=False)
    report = await sb.sweep(less, dry_run=False, min_age_s=0.0, store=store, clock=job.clock)
    assert report.stopped is not None
    assert await job.read(checkpoint_id=ids[0]) == ids[0]
