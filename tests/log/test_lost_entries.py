"""The newest entry is gone, or another lies in its place, although the hint names it: told, and never passed over."""

from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

import statebackend as sb
from statebackend._codec.commit import encode_entry
from statebackend._log.log_writer import LOST_MAX
from statebackend._log.names import HINT_KEY, entry_key, hint_of
from statebackend._log.sweeping.log_sweep import Sweep
from statebackend.abc import Capability
from statebackend.abc.clock import SystemClock
from statebackend.errors import FencedError, MissingObjectError
from statebackend.ids import CheckpointId, CommitSequence
from statebackend.objectstore import MemoryStore
from statebackend.objectstore.scoped import ScopedStore
from statebackend.testing import Fail, FaultyStore
from tests.log.logs import claim, commit, log_on, writer_on

SETTINGS = sb.Settings(job="fleet", primary="memory://unused", persist_delay_s=0.0, max_parallelism=4)


class NoListStore(MemoryStore):
    """A store without a listing: its log begins at 0."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        return super().capabilities - {Capability.LIST}


async def filled(entries: int, store: MemoryStore | None = None) -> MemoryStore:
    """A claim and commits, and the hint that names the last."""
    store = store or MemoryStore()
    writer = writer_on(store)
    await claim(writer)
    for sequence in range(1, entries):
        await writer.append(commit(sequence, stamp=f"stamp-{sequence}"))
    await writer.write_hint()
    return store


@pytest.mark.parametrize("kind", [MemoryStore, NoListStore])
@pytest.mark.parametrize("lost", [1, 2, 9, 10])
async def test_the_newest_entries_are_missed_if_the_hint_names_them(kind: type[MemoryStore], lost: int) -> None:
    """However many, and in a store that cannot list. The error says which is gone and what is left."""
    store = await filled(10, kind())
    for sequence in range(10 - lost, 10):
        await store.delete(entry_key(sequence))
    log = log_on(store)
    with pytest.raises(MissingObjectError, match="put it back, open an older checkpoint") as caught:
        await log.newest(await log.end())
    assert caught.value.facts == {"object": entry_key(9), "hint": HINT_KEY, "last_left": 9 - lost}
    await store.delete(HINT_KEY)
    newest = await log.newest(await log.end())
    assert (None if newest is None else newest.sequence) == (9 - lost if lost < 9 else None)


async def test_another_entry_in_the_place_of_the_newest_is_noticed() -> None:
    """It is whole and of this place, but not the one that the hint names, and nothing follows it."""
    store = await filled(10)
    await store.put(entry_key(9), [encode_entry(commit(9, stamp="other"), entry_key(9)).body])
    log = log_on(store)
    with pytest.raises(MissingObjectError):
        await log.newest(await log.end())


@given(
    st.integers(2, 40),
    st.integers(0, 45),
    st.sets(st.integers(1, 40)),
    st.sampled_from(["verified", "old", "flipped"]),
)
async def test_the_end_is_found_or_known_to_be_lost(entries: int, hinted: int, gone: set[int], kind: str) -> None:
    """Any entries are gone, any is hinted, by a hint of this release, of an earlier one, or a damaged one."""
    store = await filled(entries)
    hinted = min(hinted, entries - 1)
    content = await store.get(HINT_KEY)
    if hinted < entries - 1:
        writer = writer_on(store)
        writer.last, writer._is_hint_due = await log_on(store).load(hinted), True
        await writer.write_hint()
        content = await store.get(HINT_KEY)
    if kind == "old":
        content = content.rpartition(b" ")[0]
    elif kind == "flipped":
        content = b"7" + content
    await store.put(HINT_KEY, [content])
    for sequence in gone:
        await store.delete(entry_key(sequence))
    last = max(set(range(entries)) - gone)
    end = await log_on(store).end()
    assert end is not None
    assert (end.lost is not None) == (kind == "verified" and last < hinted)
    if not gone & set(range(hinted, entries)):
        assert end.sequence == entries - 1
    assert end.sequence == last


@pytest.mark.parametrize(("hinted", "gone"), [(4, {5}), (4, {6, 7}), (1, {2, 4, 5, 9}), (4, {*range(5, 68)})])
async def test_later_entries_behind_a_hole_are_the_newest(hinted: int, gone: set[int]) -> None:
    """The hint is old, as it is while a stream runs or after it was killed. It rolled back by up to 64 entries."""
    store = await filled(70)
    writer = writer_on(store)
    writer.last, writer._is_hint_due = await log_on(store).load(hinted), True
    await writer.write_hint()
    for sequence in gone:
        await store.delete(entry_key(sequence))
    log = log_on(store)
    newest = await log.newest(await log.end())
    assert newest is not None
    assert newest.sequence == 69


async def test_a_writer_that_appends_while_the_end_is_looked_for_leaves_no_hole(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What is listed behind the end that was found may be new: then nothing is told."""
    store = await filled(10)
    writer = writer_on(store)
    writer.last = await log_on(store).load(9)

    class Append(Fail):
        async def strike(self) -> None:
            for sequence in (10, 11, 12):
                await writer.append(commit(sequence, stamp=f"stamp-{sequence}"))

    end = await log_on(FaultyStore(store, [Append(operation="list", nth=1)])).end()
    assert end is not None
    assert end.sequence == 12
    assert not caplog.records
    await store.delete(entry_key(12))
    await store.delete(entry_key(10))
    end = await log_on(store).end()
    assert end is not None
    assert end.sequence == 11
    assert [entry_key(10) in record.getMessage() for record in caplog.records] == [True]


async def test_a_job_with_a_hole_in_its_log_goes_on_from_its_newest_state() -> None:
    """Writers and readers alike; verify names what is gone, and the writer that goes on is not fenced."""
    store = MemoryStore()
    async with sb.open_backend(SETTINGS, store=store) as backend:
        for number in range(1, 41):
            backend.value_state("n", int)["k"] = number
            await backend.checkpoint(number)
    hint = hint_of(await log_on(ScopedStore(store, "fleet/")).load(10))
    await store.put(f"fleet/{HINT_KEY}", [hint])
    await store.delete(f"fleet/{entry_key(11)}")
    async with sb.open_backend(SETTINGS, store=store, read_only=True) as backend:
        assert backend.value_state("n", int)["k"] == 40
    report = await sb.verify(SETTINGS, store=store)
    assert [damage.key for damage in report.damages] == [entry_key(11)]
    async with aclosing(sb.watch(SETTINGS, store=store)) as beats:
        assert (await anext(beats)).checkpoint_id == 40
    async with sb.open_backend(SETTINGS, store=store) as backend:
        assert backend.value_state("n", int)["k"] == 40
        for number in range(41, 45):
            backend.value_state("n", int)["k"] = number
            await backend.checkpoint(number)
    await store.put(f"fleet/{HINT_KEY}", [hint])
    async with sb.open_backend(SETTINGS, store=store, read_only=True) as backend:
        assert backend.value_state("n", int)["k"] == 44


@pytest.mark.parametrize("lost", [1, 3, 9])
async def test_the_log_goes_on_from_an_older_checkpoint_without_a_gap(lost: int) -> None:
    """Claims fill the places, all that is left is found by its id, and the writer of what was lost is fenced."""
    store = await filled(10)
    zombie = writer_on(store, "zombie")
    zombie.last = await log_on(store).load(9)
    left = range(1, 10 - lost)
    for sequence in range(10 - lost, 10):
        await store.delete(entry_key(sequence))
    writer = writer_on(store, "newer")
    end = await writer.find_end()
    claimed = await writer.claim(end, base=CommitSequence(1) if left else None)
    assert claimed is not None
    assert (claimed.sequence, claimed.newest) == (10, 9 - lost if left else None)
    assert claimed.epoch > zombie.last.epoch
    with pytest.raises(FencedError):
        await zombie.append(commit(10, epoch=1))
    await writer.append(commit(11, epoch=claimed.epoch, parent=1))
    log = log_on(store)
    end = await log.end()
    newest = await log.newest(end)
    assert newest is not None
    assert newest.sequence == 11
    for sequence in left:
        assert (await log.find(end, CheckpointId(10 * sequence))).sequence == sequence


async def test_a_claim_that_was_killed_while_it_filled_the_places_is_finished_by_the_next() -> None:
    """At every point: until the last claim is there the entry stays lost, and afterwards it does not."""
    for filled_places in range(4):
        store = await filled(10)
        for sequence in (7, 8, 9):
            await store.delete(entry_key(sequence))
        writer = writer_on(store, "killed")
        end = await writer.find_end()
        assert end is not None
        for _ in range(filled_places):
            claimed = await writer._claim(end, None)
            assert claimed is not None
            end = type(end)(claimed.sequence, claimed)
        found = await log_on(store).end()
        assert found is not None
        assert found.lost is not None
        claimed = await writer_on(store, "next").claim(found)
        assert claimed is not None
        assert claimed.sequence == 10
        newest = await log_on(store).newest(await log_on(store).end())
        assert newest is not None
        assert newest.sequence == 6


async def test_a_store_that_was_put_back_far_is_not_filled_up() -> None:
    """One request for each lost entry would take hours: the message says to delete the hint."""
    store = await filled(3)
    far = commit(3 + LOST_MAX, stamp="far")
    writer = writer_on(store)
    writer.last, writer._is_hint_due = far, True
    await writer.write_hint()
    with pytest.raises(MissingObjectError, match="delete the hint"):
        await writer.claim(await writer.find_end(), base=CommitSequence(1))
    assert await store.head(entry_key(3)) is None


async def test_a_job_whose_newest_entry_was_deleted_does_not_go_on_from_the_old_state() -> None:
    """It did, and said nothing. Verify names it, a sweep deletes nothing, and an older checkpoint can be opened."""
    store = MemoryStore()
    async with sb.open_backend(SETTINGS, store=store) as backend:
        for number in (1, 2, 3):
            backend.value_state("n", int)["k"] = number
            await backend.checkpoint(number)
        key = f"fleet/{entry_key(backend.newest.sequence)}" if backend.newest is not None else ""
    body = await store.get(key)
    await store.delete(key)
    for options in ({}, {"read_only": True}):
        with pytest.raises(MissingObjectError, match="though the hint names it"):
            async with sb.open_backend(SETTINGS, store=store, **options):  # type: ignore[arg-type]
                pass
    report = await sb.verify(SETTINGS, store=store)
    assert [damage.key for damage in report.damages] == [key.removeprefix("fleet/")]
    with pytest.raises(MissingObjectError):
        await sb.sweep(SETTINGS, store=store, dry_run=False)
    await store.put(key, [body])
    async with sb.open_backend(SETTINGS, store=store, read_only=True) as backend:
        assert backend.value_state("n", int)["k"] == 3
    await store.delete(key)
    async with sb.open_backend(SETTINGS, store=store, checkpoint_id=2) as backend:
        assert backend.value_state("n", int)["k"] == 2
        backend.value_state("n", int)["k"] = 30
        await backend.checkpoint(4)
    async with sb.open_backend(SETTINGS, store=store, read_only=True) as backend:
        assert backend.value_state("n", int)["k"] == 30


async def test_a_sweep_of_a_log_whose_end_is_lost_deletes_nothing() -> None:
    """What the lost commit needs is not known."""
    store = await filled(10)
    await store.delete(entry_key(9))
    with pytest.raises(MissingObjectError):
        await Sweep(store, log_on(store), checkpoints_retained=1, clock=SystemClock()).run(dry_run=False)
