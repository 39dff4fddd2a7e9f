"""The log of commit objects: found without listing, created once, resolved by the writer's stamp."""

import asyncio
from typing import Any

import pytest

import statebackend as sb
from statebackend._codec.commit import Commit, encode_entry
from statebackend._log.log_end import LogEnd
from statebackend._log.log_reader import LogReader
from statebackend._log.log_writer import HINT_EVERY
from statebackend._log.names import HINT_KEY, entry_key
from statebackend.abc import ObjectStore
from statebackend.errors import (
    CheckpointNotFoundError,
    CorruptCommitError,
    FencedError,
    OutcomeUnknownError,
    StoreAccessError,
)
from statebackend.ids import CheckpointId
from statebackend.objectstore import MemoryStore
from statebackend.objectstore.scoped import CountingStore
from statebackend.testing import Fail, FaultyStore, Hold
from tests.log.logs import commit, log_on, writer_on


async def newest_on(store: ObjectStore) -> Commit | None:
    log = log_on(store)
    return await log.newest(await log.end())


async def filled(count: int) -> MemoryStore:
    """A log of commits only, with ids 0, 10, 20, ..., as far as its readers care."""
    store = MemoryStore()
    writer = writer_on(store)
    for sequence in range(count):
        await writer.append(commit(sequence))
    return store


async def end_of(log: LogReader) -> LogEnd:
    end = await log.end()
    assert end is not None
    return end


async def test_an_empty_log_has_no_newest() -> None:
    """A job that never committed."""
    assert await newest_on(MemoryStore()) is None


@pytest.mark.parametrize("count", [1, 2, 3, HINT_EVERY, HINT_EVERY + 1, HINT_EVERY + 7, 3 * HINT_EVERY])
async def test_the_newest_is_found_from_the_hint_with_one_listing(count: int) -> None:
    """However old the hint is, probing forward from it finds the newest commit in a logarithm of requests.

    The listing is for what may lie behind a hole; it is not of the whole log.
    """
    store = CountingStore(await filled(count))
    newest = await newest_on(store)
    assert newest is not None
    assert newest.sequence == count - 1
    assert store.requests["list"] == 1
    assert store.requests.total() <= 2 * HINT_EVERY.bit_length() + 3


@pytest.mark.parametrize(
    "hint",
    [
        *(None, b"nonsense", b"19", b"19 other", b"999 mine", b"", b" mine", b"-3 mine"),
        pytest.param(b"9" * 5000 + b" mine", id="5,000 digits"),
        pytest.param(b"1" + b"0" * 17 + b" mine", id="18 digits"),
    ],
)
async def test_a_useless_hint_costs_a_listing_and_nothing_else(hint: bytes | None) -> None:
    """Absent, damaged or ahead of the log: the hint is never believed."""
    store = await filled(20)
    await store.delete(HINT_KEY)
    if hint is not None:
        await store.put(HINT_KEY, [hint])
    newest = await newest_on(store)
    assert newest is not None
    assert newest.sequence == 19


@pytest.mark.parametrize("other", [5, 20, 18, 1])
async def test_an_entry_under_another_name_is_damage(other: int) -> None:
    """With an older entry's bytes under the newest name, a job went on from the old state."""
    store = await filled(20)
    body = await store.get(entry_key(other)) if other < 20 else encode_entry(commit(20), entry_key(20)).body
    await store.put(entry_key(19), [body])
    log = log_on(store)
    assert (await end_of(log)).entry is None
    with pytest.raises(CorruptCommitError, match="another place") as caught:
        await log.newest(await end_of(log))
    assert caught.value.facts == {"object": entry_key(19), "offset": 0, "sequence_found": other}
    assert (await log.find(await end_of(log), CheckpointId(180))).sequence == 18


@pytest.mark.parametrize("number", ["7", "99", "0000000000099"])
async def test_a_foreign_number_beside_the_log_does_not_mislead_the_search(number: str) -> None:
    """A listing counts only the keys under which a writer would have made an entry."""
    store = await filled(20)
    await store.delete(HINT_KEY)
    await store.put(f"commits/{number}", [b"theirs"])
    newest = await newest_on(store)
    assert newest is not None
    assert newest.sequence == 19


async def test_a_taken_sequence_fences_and_leaves_the_winner() -> None:
    """Somebody else's commit lies there: that is final, and it is not touched."""
    store = await filled(2)
    winner = await store.get(entry_key(1))
    with pytest.raises(FencedError) as caught:
        await writer_on(store).append(commit(1, stamp="another writer"))
    assert caught.value.facts["sequence"] == 1
    assert await store.get(entry_key(1)) == winner


async def test_a_lost_answer_is_resolved_by_the_stamp() -> None:
    """The object was made and the answer lost: found again by the retry, it counts as ours."""
    store = MemoryStore()
    await writer_on(FaultyStore(store, [Fail(operation="put_if_absent", moment="after", nth=1)])).append(commit(0))
    newest = await newest_on(store)
    assert newest is not None
    assert newest.stamp == "mine"


async def test_a_lost_answer_to_somebody_elses_commit_still_fences() -> None:
    """The retry finds another stamp: not ours, whatever happened to our own request."""
    store = await filled(1)
    lossy = FaultyStore(store, [Fail(operation="put_if_absent", moment="before", nth=1)])
    with pytest.raises(FencedError):
        await writer_on(lossy).append(commit(0, stamp="another writer"))


@pytest.mark.parametrize(("moment", "error"), [("before", StoreAccessError), ("after", None)])
async def test_a_refusal_is_believed_only_where_nothing_was_made(moment: Any, error: Any) -> None:
    """A refusal about an object that lies there, ours, is a lost answer; where nothing lies, it is the truth."""
    store = MemoryStore()
    refusing = FaultyStore(store, [Fail(operation="put_if_absent", moment=moment, error=StoreAccessError("denied"))])
    if error is None:
        await writer_on(refusing).append(commit(0))
    else:
        with pytest.raises(error):
            await writer_on(refusing).append(commit(0))
    assert (await newest_on(store) is not None) == (error is None)


async def test_a_refused_commit_that_cannot_be_read_back_is_unknown() -> None:
    """The store refuses the write and the look: nobody can say what came of it."""
    denied = StoreAccessError("denied")
    store = FaultyStore(
        MemoryStore(),
        [Fail(operation="put_if_absent", moment="after", error=denied), Fail(operation="get", error=denied)],
    )
    with pytest.raises(OutcomeUnknownError):
        await writer_on(store).append(commit(0))


async def test_a_commit_that_cannot_be_read_back_is_unknown() -> None:
    """It exists, and nobody can say whose it is: neither success nor failure."""
    store = FaultyStore(
        await filled(1), [Fail(operation="put_if_absent", moment="before", nth=1), Fail(operation="get")]
    )
    with pytest.raises(OutcomeUnknownError):
        await writer_on(store).append(commit(0))


async def test_no_answer_in_time_is_unknown() -> None:
    """A store that never answers does not hold the caller for longer than the timeout."""
    store = FaultyStore(MemoryStore(), [Hold(operation="put_if_absent")])
    with pytest.raises(OutcomeUnknownError):
        await writer_on(store, timeout_s=0.01).append(commit(0))


@pytest.mark.parametrize("error", [StoreAccessError("refused"), asyncio.CancelledError()])
async def test_a_hint_that_cannot_be_written_fails_nothing(error: BaseException) -> None:
    """The commit exists before its hint; the hint is a convenience, also for a store that cancels itself."""
    store = MemoryStore()
    await writer_on(FaultyStore(store, [Fail(operation="put", error=error)])).append(commit(0))
    assert await newest_on(store) is not None


async def test_checkpoints_are_found_by_id_across_gaps() -> None:
    """Every id that was committed is found, none between them is."""
    store = MemoryStore()
    ids = [0, 1, 5, 6, 100, 101, 102, 5000]
    writer = writer_on(store)
    for sequence, checkpoint_id in enumerate(ids):
        await writer.append(commit(sequence, checkpoint_id=checkpoint_id))
    end = await end_of(writer.log)
    for sequence, checkpoint_id in enumerate(ids):
        assert (await writer.log.find(end, CheckpointId(checkpoint_id))).sequence == sequence
    for missing in (-1, 2, 7, 99, 4999, 5001):
        with pytest.raises(CheckpointNotFoundError):
            await writer.log.find(end, CheckpointId(missing))


@pytest.mark.parametrize("damaged", [{0}, {7}, {3, 4}, {0, 1, 2, 5, 6, 7}, set(range(8))])
async def test_damaged_commits_hide_no_other(damaged: set[int]) -> None:
    """Every commit that can be read is found by its id, whichever others cannot."""
    store = await filled(8)
    for sequence in damaged:
        await store.put(entry_key(sequence), [b"not a commit"])
    log = log_on(store)
    end = await end_of(log)
    for sequence in range(8):
        if sequence in damaged:
            with pytest.raises(CheckpointNotFoundError):
                await log.find(end, CheckpointId(10 * sequence))
        else:
            assert (await log.find(end, CheckpointId(10 * sequence))).sequence == sequence


async def test_ancestors_follow_parents() -> None:
    """From a commit to the first one of its branch."""
    log = log_on(await filled(4))
    newest = await log.newest(await log.end())
    assert newest is not None
    assert [each.sequence async for each in log.branch(newest)] == [3, 2, 1, 0]


def test_the_front_door_exports_what_it_lists() -> None:
    """Every public name exists."""
    assert [name for name in sb.__all__ if not hasattr(sb, name)] == []
