"""A host without copies: the job opens at once, pages are read by ranges, and the copies come in behind the batches."""

import tempfile
from collections.abc import Generator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import anyio
import pyarrow as pa
import pytest

import statebackend as sb
from statebackend._backend.apart import Apart
from statebackend._changelog.changelog_reader import TAIL_BYTES
from statebackend._checkpoint import far_runs
from statebackend._codec.change_sets.parts import _PartOfPages
from statebackend._runs.far_pages import RANGE_BYTES_MAX, FarFile, FarRange
from statebackend.errors import CorruptSegmentError, MissingObjectError, StoreUnavailableError
from statebackend.ids import Handle
from statebackend.testing import run_virtual
from statebackend.testing.virtual_time import VirtualClock, settle
from tests.runs.afar import LATENCY_S, FarJob, FarPrimary, Primary
from tests.runs.ranges import always_by_ranges
from tests.runs.test_jobs_over_runs import columns, table_of
from tests.runs.test_no_room import fill

PAGE = 4096


@pytest.fixture(autouse=True)
def _by_ranges() -> Generator[None]:
    with always_by_ranges():
        yield


@pytest.fixture
def job(tmp_path: Path) -> FarJob:
    return FarJob(tmp_path)


def rows(backend: sb.StateBackend, *keys: str) -> list[Any]:
    """What a look-up finds."""
    return columns(backend).rows(pa.array(keys)).gather(["n"])["n"].to_pylist()


def is_far(backend: sb.StateBackend) -> set[bool]:
    """For each part that is looked up, if it is read by ranges."""
    return {isinstance(each.part.file, FarFile) for each in table_of(backend)._runs.parts}


def incoming(backend: sb.StateBackend) -> Any:
    return backend._base_writer._runs.incoming  # type: ignore[union-attr]


def of_early_releases() -> AbstractContextManager[Any]:
    """Segments are written with as many parts in a frame as came from the table."""
    return mock.patch.object(_PartOfPages, "goes_on_with", return_value=False)


def hold(job: FarJob) -> anyio.Event:
    """Let no segment come in before this is set."""
    job.store.gate = anyio.Event()
    return job.store.gate


@run_virtual
async def test_the_first_value_does_not_wait_for_the_whole(job: FarJob) -> None:
    """One page is read for one key; the rest comes in behind, and then nothing is asked for any more."""
    await job.on_an_empty_host()
    gate = hold(job)
    async with job.unchecked() as backend:
        assert rows(backend, "k7", "nobody") == [1, None]
        assert job.store.wholes == [] or not gate.is_set()
        assert 1 <= len(job.looking.ranges) <= 2
        assert {each.length for each in job.looking.ranges} <= {PAGE, 2 * PAGE}
        assert is_far(backend) == {True}
        gate.set()
        await incoming(backend).ended()
        assert is_far(backend) == {False}
        job.looking.forget()
        job.check(backend)
        assert job.looking.ranges == []
        assert sorted(job.store.wholes) == sorted(set(job.store.wholes)), "each once"
    job.store.forget()
    async with job.open():
        assert (job.store.ranges, job.store.wholes) == ([], []), "the local copies are there"


@pytest.mark.parametrize("is_early", [False, True])
@run_virtual
async def test_opening_takes_few_round_trips_and_few_bytes(job: FarJob, is_early: bool) -> None:
    """The ends, then what lies between frames, however many they are, then between two parts of each, if any."""
    with of_early_releases() if is_early else nullcontext():
        await job.on_an_empty_host(20_000)
    hold(job)
    clock = VirtualClock()
    with mock.patch.object(far_runs, "TAIL_BYTES", TAIL_BYTES):
        async with job.unchecked(clock=clock) as backend:
            assert round(clock.monotonic() / LATENCY_S) == 2 + is_early
            ranged = {each.key for each in job.store.ranges}
            stored = sum(len(job.store.bytes_of(key)) for key in ranged)
            parts = table_of(backend)._runs.parts
            assert len(parts) > 5
            assert sum(each.length for each in job.store.ranges) < stored / 3
            assert backend.restored is not None
            assert backend.restored.bytes_primary < stored / 2


@run_virtual
async def test_many_keys_are_asked_for_together(job: FarJob) -> None:
    """Neighbouring pages in one request, of bounded size, and the requests all at once."""
    await job.on_an_empty_host(20_000)
    hold(job)
    async with job.unchecked() as backend:
        keys = [f"k{number}" for number in range(0, 20_000, 7)]
        assert rows(backend, *keys) == [1] * len(keys)
        parts = table_of(backend)._runs.parts
        pages = sum(each.part.head.pages for each in parts)
        assert len(job.looking.ranges) < pages / 4
        assert job.looking.most_at_once == len(job.looking.ranges) > 1
        assert max(each.length for each in job.looking.ranges) <= RANGE_BYTES_MAX
        job.looking.forget()
        rows(backend, *keys)
        assert job.looking.ranges == [], "rows that were found stay in memory"


@run_virtual
async def test_requests_of_look_ups_are_counted(job: FarJob) -> None:
    """They cost as others do."""
    await job.on_an_empty_host()
    hold(job)
    async with job.unchecked() as backend:
        before = backend._spending.requests
        rows(backend, "k1")
        assert backend._spending.requests - before == {"get_range": len(job.looking.ranges)}
        assert job.looking.ranges != []


@run_virtual
async def test_a_checkpoint_is_local_once_all_has_come_in(job: FarJob) -> None:
    """Not while a copy is missing; and a batch is committed without waiting for that."""
    await job.on_an_empty_host()
    gate = hold(job)
    async with job.unchecked() as backend:
        job.write(backend, ["k1"])
        assert not (await backend.checkpoint(job.checkpoint_id + 1)).local
        gate.set()
        await incoming(backend).ended()
        job.write(backend, ["k2"])
        assert (await backend.checkpoint(job.checkpoint_id + 2)).local
        job.seen = job.checkpoint_id
        job.check(backend)


@run_virtual
async def test_no_base_is_written_before_all_has_come_in(tmp_path: Path) -> None:
    """It would read all of the state by ranges."""
    job = FarJob(tmp_path, materialize_changelog_ratio=0.0)
    await job.on_an_empty_host()
    gate = hold(job)
    async with job.unchecked() as backend:
        job.write(backend, ["k1"])
        job.checkpoint_id += 1
        job.seen = job.checkpoint_id
        backend.value_state("seen", int)["checkpoint"] = job.seen
        job.looking.forget()
        await backend.checkpoint(job.checkpoint_id)
        await settle()
        assert is_far(backend) == {True}
        assert job.looking.ranges == []
        gate.set()
        await backend._base_writer.settled()
        assert job.looking.ranges == []
        await job.commit(backend)
        job.check(backend)


@run_virtual
async def test_leaving_while_copies_come_in(job: FarJob) -> None:
    """Nothing of them stays, and the next opening goes on; look-ups end with the backend."""
    await job.on_an_empty_host()
    hold(job)
    async with job.unchecked() as backend:
        await settle()
        assert job.store.wholes != []
    with pytest.raises(sb.errors.BackendClosedError):
        rows(backend, "k1999")
    assert job.segments("local") == []
    job.store.gate = None
    async with job.open() as backend:
        await incoming(backend).ended()
    assert job.segments("local") != []


# ------------------------------------------------------------------------------------------------------------- damage


def flip(data: bytes, at: int) -> bytes:
    """One bit of that byte."""
    flipped = bytearray(data)
    flipped[at] ^= 1 << at % 8
    return bytes(flipped)


@run_virtual
async def test_a_page_that_is_damaged_on_its_way_is_asked_for_again(job: FarJob) -> None:
    """Once, and alone."""
    await job.on_an_empty_host()
    hold(job)
    keys = [f"k{number}" for number in range(2000)]
    async with job.unchecked() as backend:
        damaged = list[FarRange]()

        def once(asked: FarRange, data: bytes) -> bytes:
            if asked.length <= PAGE or damaged:
                return data
            damaged.append(asked)
            return flip(data, PAGE + 100)

        job.looking.damage = once
        assert rows(backend, *keys) == [1] * 2000
        (again,) = [
            each for each in job.looking.ranges if each.length == PAGE and each.offset == damaged[0].offset + PAGE
        ]
        assert again.key == damaged[0].key


@run_virtual
async def test_a_page_that_is_damaged_in_the_primary_ends_the_batch(job: FarJob) -> None:
    """Before its values are used; other pages are read as ever, and nothing is changed."""
    await job.on_an_empty_host()
    hold(job)
    async with job.unchecked() as backend:
        (part, *_) = (each.part for each in table_of(backend)._runs.parts)
        bad = part.offset + 50

        def always(asked: FarRange, data: bytes) -> bytes:
            is_hit = asked.key.endswith(part.key) and asked.offset <= bad < asked.offset + asked.length
            return flip(data, bad - asked.offset) if is_hit else data

        job.looking.damage = always
        found, refused = 0, 0
        for number in range(0, 2000, 20):
            try:
                found += rows(backend, f"k{number}") == [1]
            except CorruptSegmentError:
                refused += 1
        assert found + refused == 100
        assert 0 < refused < 50
        with pytest.raises(CorruptSegmentError):
            job.write(backend, [f"k{number}" for number in range(2000)])
        job.looking.damage = lambda _, data: data
        assert rows(backend, *(f"k{number}" for number in range(2000))) == [1] * 2000


@run_virtual
async def test_every_flipped_bit_of_a_range_is_refused_or_asked_for_again(job: FarJob) -> None:
    """Of what is read at the opening, and of pages: whatever an answer has, no wrong value comes of it."""
    await job.on_an_empty_host(300)
    hold(job)
    (key,) = job.store.paged
    outcomes = set[str]()
    for bad in range(0, len(job.store.bytes_of(key)), 997):

        def damaged(asked: FarRange, data: bytes, bad: int = bad) -> bytes:
            is_hit = asked.key == key and asked.offset <= bad < asked.offset + len(data)
            return flip(data, bad - asked.offset) if is_hit else data

        job.store.damage = job.looking.damage = damaged
        job.store.gate = None
        try:
            async with job.unchecked() as backend:
                try:
                    assert rows(backend, *(f"k{number}" for number in range(300))) == [1] * 300
                    outcomes.add("right")
                except CorruptSegmentError:
                    outcomes.add("page")
                await incoming(backend).ended()
                assert job.segments("local") == [], "no damaged copy"
        except CorruptSegmentError:
            outcomes.add("opening")
        job.lose_copies()
    assert outcomes == {"opening", "page"}


@run_virtual
async def test_a_tail_that_is_damaged_on_its_way(job: FarJob) -> None:
    """Then the whole is fetched, which says what is wrong: here nothing."""
    await job.on_an_empty_host()
    last = len(job.store.bytes_of(job.store.paged[0])) - 1
    job.store.damage = lambda asked, data: (
        flip(data, -1) if 0 < asked.offset <= last < asked.offset + len(data) else data
    )
    async with job.open() as backend:
        assert is_far(backend) == {False}
        assert job.store.wholes == job.store.paged


@run_virtual
async def test_a_whole_that_comes_in_damaged_is_not_taken(job: FarJob, caplog: pytest.LogCaptureFixture) -> None:
    """It is asked for twice; then the pages are read by ranges as before, and are right."""
    await job.on_an_empty_host()
    job.store.damage = lambda asked, data: flip(data, 9000) if not asked.offset and len(data) > 9000 else data
    async with job.unchecked() as backend:
        await incoming(backend).ended()
        assert len(job.store.wholes) == 2 * len(job.store.paged)
        assert is_far(backend) == {True}
        assert "a copy did not come in" in caplog.text
        job.check(backend)
        assert job.segments("local") == []


@run_virtual
async def test_a_whole_that_is_damaged_on_its_way_is_asked_for_again(job: FarJob) -> None:
    await job.on_an_empty_host()
    job.store.damage = lambda asked, data: (
        flip(data, 9000) if len(data) > 9000 and job.store.wholes.count(asked.key) == 1 else data
    )
    async with job.unchecked() as backend:
        await incoming(backend).ended()
        assert is_far(backend) == {False}
        job.check(backend)


# -------------------------------------------------------------------------------------------- what else may go wrong


@run_virtual
async def test_a_request_that_fails_ends_the_batch_and_it_can_be_processed_again(job: FarJob) -> None:
    """Nothing is changed by it."""
    await job.on_an_empty_host()
    hold(job)

    def fail(asked: FarRange) -> None:
        raise StoreUnavailableError("the store does not answer", key=asked.key)

    async with job.unchecked() as backend:
        job.looking.error = fail
        with pytest.raises(StoreUnavailableError):
            job.write(backend, ["k1", "new"])
        job.looking.error = lambda _: None
        job.write(backend, ["k1", "new"])
        job.check(backend)


def test_a_look_up_that_is_overtaken_by_the_end(job: FarJob) -> None:
    """In another thread: an error that says so."""
    assert isinstance(job.store, Primary)
    apart = Apart(job.store.apart)
    apart.close()
    with pytest.raises(sb.errors.BackendClosedError, match="open the job again"):
        apart.get(Handle("segments/any", 0, 1, 0))


@run_virtual
async def test_a_sweep_of_another_process_deletes_what_is_read(job: FarJob) -> None:
    """As when this one was fenced long ago: an error that says what to do."""
    await job.on_an_empty_host()
    hold(job)
    async with job.unchecked() as backend:
        for key in job.store.paged:
            job.store.remove(key)
        with pytest.raises(MissingObjectError, match="open the job again"):
            rows(backend, "k1")


@run_virtual
async def test_a_disk_that_is_full_leaves_the_state_far(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It warns once, fetches no more, and works on; with room, the next opening has the copies."""
    job = FarJob(tmp_path, in_flight_bytes_max=400_000, persist_size_threshold_bytes=100_000)
    await job.on_an_empty_host(20_000)
    monkeypatch.setattr(tempfile, "tempdir", str(job.directory / "system"))
    with fill(job.directory):
        async with job.unchecked() as backend:
            await incoming(backend).ended()
            assert is_far(backend) == {True}
            assert caplog.text.count("there is no room for copies") == 1
            assert len(job.store.wholes) == 2 < len(job.store.paged)
            job.check(backend)
            job.write(backend, ["k1", "new"])
            assert not (await backend.checkpoint(job.checkpoint_id + 1)).local
            job.check(backend)
    async with job.unchecked() as backend:
        await incoming(backend).ended()
        assert is_far(backend) == {False}
        job.check(backend)


@run_virtual
async def test_where_only_the_local_root_is_full_copies_have_no_name(job: FarJob) -> None:
    """In the directory of the tables: they are gone with the backend."""
    await job.on_an_empty_host()
    with fill(job.directory / "local"):
        async with job.unchecked() as backend:
            await incoming(backend).ended()
            assert is_far(backend) == {False}
            job.looking.forget()
            job.check(backend)
            assert job.looking.ranges == []
    assert job.segments("local") == []


@run_virtual
async def test_without_local_roots_copies_have_no_name(tmp_path: Path) -> None:
    """As for a reader, which writes nothing where others look."""
    job = FarJob(tmp_path, local=())
    await job.on_an_empty_host()
    for read_only in (False, True):
        gate = hold(job)
        async with job.unchecked(read_only=read_only) as backend:
            assert rows(backend, "k1") == [1]
            gate.set()
            await incoming(backend).ended()
            assert is_far(backend) == {False}
            job.check(backend)


# ------------------------------------------------------------------------------------- who has all fetched beforehand


@run_virtual
async def test_a_store_that_cannot_be_opened_apart_is_read_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And that is said."""
    job = FarJob(tmp_path, store=FarPrimary())
    await job.on_an_empty_host()
    with caplog.at_level("INFO"):
        async with job.open() as backend:
            assert is_far(backend) == {False}
            assert job.store.ranges == []
    assert "OpensApart" in caplog.text


@run_virtual
async def test_falling_back_to_older_needs_all_of_it_beforehand(tmp_path: Path) -> None:
    """Damage in a page is found while another checkpoint can be opened."""
    job = FarJob(tmp_path, fall_back_to_older=True)
    await job.on_an_empty_host()
    async with job.open() as backend:
        assert is_far(backend) == {False}


@run_virtual
async def test_a_download_cache_has_whole_files(job: FarJob) -> None:
    """Which it shares: nobody reads around it."""
    await job.on_an_empty_host()
    async with sb.owners.open_download_cache(job.settings, store=job.store) as cache, job.open(cache=cache) as backend:
        assert is_far(backend) == {False}
        assert job.store.ranges == []


@run_virtual
async def test_small_parts_are_fetched_whole(job: FarJob) -> None:
    """A request takes as long as 128 KiB: no segment of 100 KB is worth two."""
    await job.on_an_empty_host()
    with mock.patch.multiple(far_runs, REQUEST_BYTES=128 * 1024, TAIL_BYTES=TAIL_BYTES):
        async with job.open() as backend:
            assert is_far(backend) == {False}
            assert job.store.wholes == job.store.paged


@run_virtual
async def test_a_primary_of_the_settings_is_read_by_a_client_of_its_own(tmp_path: Path) -> None:
    """A directory, or a store in memory, by their URLs."""
    for number, url in enumerate((f"file://{tmp_path}/primary", f"memory://{tmp_path.name}")):
        job = FarJob(tmp_path / str(number), primary=url)
        async with job.unchecked(store=None) as backend:
            job.write(backend, [f"k{number}" for number in range(2000)])
            await job.commit(backend)
            await job.commit(backend)
        job.lose_copies()
        async with job.unchecked(store=None) as backend:
            assert is_far(backend) == {True}
            assert rows(backend, "k1", "nobody") == [1, None]
            await incoming(backend).ended()
            job.check(backend)
            assert is_far(backend) == {False}


@run_virtual
async def test_what_is_fetched_whole_is_not_read_by_ranges_before(job: FarJob) -> None:
    """But for its ends, which say that there are two parts in each frame: a request for each would be too many."""
    with of_early_releases():
        await job.on_an_empty_host(20_000)
    with mock.patch.multiple(far_runs, REQUEST_BYTES=64 * 1024, ROUND_BYTES=1, TAIL_BYTES=TAIL_BYTES):
        async with job.unchecked() as backend:
            (key,) = job.store.paged
            parts = len(table_of(backend)._runs.parts)
            assert parts // 2 * 64 * 1024 < len(job.store.bytes_of(key)) < parts * 64 * 1024
            assert job.store.wholes == [key]
            assert len(job.store.ranges) == 2
