"""Claims fence every earlier writer, and a log whose old entries are swept accepts no writer from the past."""

from dataclasses import dataclass

import pytest

from statebackend._codec.commit import Claim, encode_entry
from statebackend._log.log_writer import LOG_CONTACT_MAX_S
from statebackend._log.names import HINT_KEY, entry_key, hint_of
from statebackend.errors import (
    CheckpointNotFoundError,
    CorruptCommitError,
    FencedError,
    MissingObjectError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from statebackend.ids import CheckpointId, CommitSequence
from statebackend.objectstore import MemoryStore
from statebackend.testing import Fail, FaultyStore
from tests.log.logs import claim, commit, log_on, writer_on


@dataclass
class HandClock:
    """Two clocks that are set by hand: one may stand still while the machine sleeps, the other may be put back."""

    monotonic_s: float = 0.0
    time_s: float = 1e9

    def monotonic(self) -> float:
        return self.monotonic_s

    def time(self) -> float:
        return self.time_s


async def sweep(store: MemoryStore, oldest: int) -> None:
    """Remove every entry before `oldest`."""
    for sequence in range(oldest):
        await store.delete(entry_key(sequence))


async def test_the_first_claim_begins_the_log() -> None:
    """Of a job that nobody has opened: epoch 1, and no commit before it."""
    claimed = await claim(writer_on(MemoryStore()))
    assert (claimed.sequence, claimed.epoch, claimed.newest) == (0, 1, None)


async def test_each_claim_raises_the_epoch_and_names_the_newest_commit() -> None:
    """Also where other claims lie between it and that commit."""
    store = MemoryStore()
    writer = writer_on(store)
    await claim(writer)
    await writer.append(commit(1, epoch=1))
    second = await claim(writer_on(store))
    third = await claim(writer_on(store))
    assert [(each.sequence, each.epoch, each.newest) for each in (second, third)] == [(2, 2, 1), (3, 3, 1)]
    newest = await log_on(store).newest(await log_on(store).end())
    assert newest is not None
    assert newest.sequence == 1


async def test_a_claim_fences_before_anything_is_committed() -> None:
    """The older writer's next commit finds its place taken."""
    store = MemoryStore()
    older = writer_on(store, "older")
    await claim(older)
    await claim(writer_on(store, "newer"))
    with pytest.raises(FencedError) as caught:
        await older.append(commit(1, epoch=1))
    assert caught.value.facts == {"sequence": 1, "epoch_mine": 1, "epoch_found": 2}


async def test_a_claim_that_comes_second_is_none() -> None:
    """Somebody claimed between the look and the claim: look again."""
    store = MemoryStore()
    writer = writer_on(store, "second")
    end = await writer.find_end()
    await claim(writer_on(store, "first"))
    assert await writer.claim(end) is None


async def test_a_claim_whose_answer_is_lost_is_ours() -> None:
    """By its stamp, as a commit."""
    lossy = FaultyStore(MemoryStore(), [Fail(operation="put_if_absent", moment="after", nth=1)])
    assert (await claim(writer_on(lossy))).epoch == 1


async def test_a_claim_without_an_answer_is_tried_again_by_opening_again() -> None:
    """Nothing is lost by it, made or not: a store's error, and not an unknown outcome."""
    silent = FaultyStore(MemoryStore(), [Fail(operation="put_if_absent", moment="after"), Fail(operation="get")])
    writer = writer_on(silent, "mine")
    with pytest.raises(StoreUnavailableError):
        await writer.claim(None)


async def test_a_claim_behind_a_damaged_end_is_above_every_epoch_there_can_be() -> None:
    """And it names the damaged entry: opening the newest goes on failing until an older checkpoint is asked for."""
    store = MemoryStore()
    writer = writer_on(store, "first")
    await claim(writer)
    await writer.append(commit(1, epoch=1))
    await claim(writer)
    await store.put(entry_key(2), [b"damaged"])
    end = await writer.find_end()
    claimed = await writer.claim(end)
    assert claimed is not None
    assert (claimed.epoch, claimed.newest) == (4, 2)
    with pytest.raises(CorruptCommitError):
        await writer.log.newest(await writer.find_end())


# ------------------------------------------------------------------------------------------------- a log that is swept


async def swept(entries: int, oldest: int) -> MemoryStore:
    """A claim and commits of epoch 1, of which those before `oldest` have been swept."""
    store = MemoryStore()
    writer = writer_on(store)
    await claim(writer)
    for sequence in range(1, entries):
        await writer.append(commit(sequence))
    await writer.write_hint()
    await sweep(store, oldest)
    return store


async def test_what_is_retained_is_found_and_what_is_swept_is_not() -> None:
    """By its id; the older ones are not found, which is not an error of the data."""
    log = log_on(await swept(40, oldest=29))
    end = await log.end()
    for sequence in range(29, 40):
        assert (await log.find(end, CheckpointId(10 * sequence))).sequence == sequence
    for sequence in range(1, 29):
        with pytest.raises(CheckpointNotFoundError):
            await log.find(end, CheckpointId(10 * sequence))


async def test_history_ends_where_the_log_was_swept() -> None:
    """Without an error: older commits are not retained."""
    log = log_on(await swept(12, oldest=8))
    newest = await log.newest(await log.end())
    assert newest is not None
    assert [each.sequence async for each in log.branch(newest)] == [11, 10, 9, 8]


async def test_a_commit_that_a_claim_needs_is_missed() -> None:
    """The newest commit is not something that is merely not retained."""
    store = await swept(5, oldest=0)
    await claim(writer_on(store, "second"))
    await store.delete(entry_key(4))
    log = log_on(store)
    with pytest.raises(MissingObjectError):
        await log.newest(await log.end())


@pytest.mark.parametrize("hint", [b"3 mine", b"17 mine", b"29 mine", b"30 mine", b"39 mine", b"39 other", b"40 mine"])
async def test_the_end_of_a_swept_log_is_found_from_any_hint(hint: bytes) -> None:
    """One that names what was swept long ago, or has not been there yet, too."""
    store = await swept(40, oldest=30)
    await store.put(HINT_KEY, [hint])
    end = await log_on(store).end()
    assert end is not None
    assert end.sequence == 39


async def zombie_wakes(
    clock: HandClock, *, oldest: int, slept_s: float = LOG_CONTACT_MAX_S, tick: bool = True
) -> tuple[MemoryStore, BaseException | None]:
    """A writer commits 1, sleeps through another's claim and commits 2 to 9, wakes when `oldest` is, and commits 2."""
    store = MemoryStore()
    zombie = writer_on(store, "zombie", clock=clock)
    await claim(zombie)
    await zombie.append(commit(1, epoch=1))
    newer = writer_on(store, "newer")
    await claim(newer)
    for sequence in range(3, 10):
        await newer.append(commit(sequence, epoch=2))
    await newer.write_hint()
    await sweep(store, oldest)
    if tick:
        clock.monotonic_s += slept_s + 1
    else:
        clock.time_s += slept_s + 1
    try:
        await zombie.append(commit(2, epoch=1, checkpoint_id=5000, stamp="zombie"))
    except FencedError as error:
        return store, error
    return store, None


@pytest.mark.parametrize("oldest", [2, 3, 4, 9])
@pytest.mark.parametrize("tick", [True, False])
async def test_a_writer_that_slept_past_a_sweep_is_fenced(oldest: int, tick: bool) -> None:
    """Its place is free again, and its entry can be made there; but it looks again, by whichever clock has moved."""
    store, error = await zombie_wakes(HandClock(), oldest=oldest, tick=tick)
    assert isinstance(error, FencedError)
    assert await store.head(entry_key(9)) is not None


@pytest.mark.parametrize("kept", [{3}, {3, 4}, {3, 5}, {2, 3, 4, 5, 12}])
@pytest.mark.parametrize("oldest", [20, 39])
async def test_a_sweep_between_the_hint_and_the_look_behind_it_hides_nothing(kept: set[int], oldest: int) -> None:
    """It moves the hint and deletes; single entries stay. One that the old hint leads to is not the end of the log."""
    store = await swept(40, oldest=0)
    newest_hint = await store.get(HINT_KEY)
    await store.put(HINT_KEY, [hint_of(await log_on(store).load(3))])

    class Sweep(Fail):
        async def strike(self) -> None:
            await store.put(HINT_KEY, [newest_hint])
            for sequence in set(range(oldest)) - kept:
                await store.delete(entry_key(sequence))

    reading = FaultyStore(store, [Sweep(operation="get", key=HINT_KEY, nth=1, moment="after")])
    end = await log_on(reading).end()
    assert end is not None
    assert end.sequence == 39


@pytest.mark.parametrize("oldest", [3, 4, 9])
@pytest.mark.parametrize("hint", [None, b"2 newer", b"9 mine"])
async def test_what_it_has_made_there_is_not_part_of_the_log(oldest: int, hint: bytes | None) -> None:
    """The end is found, and so is every commit that is retained, and the stray, with an id above all, is not."""
    store, _ = await zombie_wakes(HandClock(), oldest=oldest)
    assert await store.head(entry_key(2)) is not None
    await store.delete(HINT_KEY)
    if hint is not None:
        await store.put(HINT_KEY, [hint])
    log = log_on(store)
    end = await log.end()
    assert end is not None
    assert end.sequence == 9
    for sequence in range(oldest, 10):
        assert (await log.find(end, CheckpointId(10 * sequence))).sequence == sequence
    with pytest.raises(CheckpointNotFoundError):
        await log.find(end, CheckpointId(5000))


async def test_a_writer_that_is_alone_may_sleep_as_long_as_it_likes() -> None:
    """It looks again, sees that its entry is the end, and goes on."""
    clock, store = HandClock(), MemoryStore()
    writer = writer_on(store, clock=clock)
    await claim(writer)
    for sequence in (1, 2, 3):
        clock.monotonic_s += 100 * LOG_CONTACT_MAX_S
        await writer.append(commit(sequence))


async def test_a_late_commit_that_another_opened_behind_is_committed_all_the_same() -> None:
    """The claim that is the end names it: only the next commit is fenced."""
    clock, store = HandClock(), MemoryStore()
    writer = writer_on(store, clock=clock)
    await claim(writer)

    class Overtaking(Fail):
        async def strike(self) -> None:
            await claim(writer_on(store, "newer"))

    late = writer_on(FaultyStore(store, [Overtaking(operation="put_if_absent", moment="after")]), clock=clock)
    await late.find_end()
    clock.monotonic_s += 2 * LOG_CONTACT_MAX_S
    await late.append(commit(1))
    with pytest.raises(FencedError):
        await writer.append(commit(2))


async def test_a_late_commit_that_cannot_be_looked_up_is_unknown() -> None:
    """The store made it, and does not say whether it is the end."""
    clock, store = HandClock(), MemoryStore()
    writer = writer_on(FaultyStore(store, [Fail(operation="get", key=HINT_KEY, nth=3)]), clock=clock)
    await claim(writer)
    clock.monotonic_s += 2 * LOG_CONTACT_MAX_S
    with pytest.raises(OutcomeUnknownError):
        await writer.append(commit(1))


async def test_a_claim_that_slept_past_a_sweep_is_none() -> None:
    """Between the look and the claim: what it has made lies where nobody looks."""
    clock, store = HandClock(), MemoryStore()
    sleeper = writer_on(store, "sleeper again", clock=clock)
    end = await sleeper.find_end()
    newer = writer_on(store, "newer")
    await claim(newer)
    for sequence in range(1, 5):
        await newer.append(commit(sequence))
    await sweep(store, 3)
    clock.monotonic_s += 2 * LOG_CONTACT_MAX_S
    assert await sleeper.claim(end) is None
    claimed = await claim(sleeper)
    assert (claimed.sequence, claimed.newest) == (5, 4)


async def test_a_stray_claim_is_passed_over() -> None:
    """Its request came long after its sender had given it up, and its place had been swept."""
    store = await swept(40, oldest=30)
    stray = Claim(job="fleet", sequence=CommitSequence(12), epoch=commit(0).epoch, stamp="late", newest=None)
    await store.put_if_absent(entry_key(12), [encode_entry(stray, entry_key(12)).body])
    log = log_on(store)
    end = await log.end()
    assert end is not None
    assert end.sequence == 39
    for sequence in range(30, 40):
        assert (await log.find(end, CheckpointId(10 * sequence))).sequence == sequence
