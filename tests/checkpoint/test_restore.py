"""Local first, file by file, verified; the primary where that fails; repaired afterwards."""

import os
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import anyio
import msgspec
import pytest

import statebackend as sb
from statebackend._changelog.changelog_reader import SegmentRead
from statebackend._checkpoint import restore as restoring
from statebackend._checkpoint.fetch import Fetched, Fetcher, Frames
from statebackend._checkpoint.rescale import range_of
from statebackend._checkpoint.restore import GROUP_BYTES_MAX, GROUP_FILES_MAX, _cut, grouped
from statebackend._codec.change_sets.changes import Changes
from statebackend._codec.change_sets.state_change import Operation, StateChange
from statebackend._codec.commit import Commit, encode_entry
from statebackend._codec.segment import checksum_of, encode_segment
from statebackend._local.segments import LocalSegments
from statebackend._log.names import entry_key
from statebackend._state.declared import KeyedStates
from statebackend._tables.key_groups import key_group
from statebackend._threads import WorkerThreads
from statebackend._upkeep import verify
from statebackend.errors import CorruptSegmentError, MissingObjectError
from statebackend.ids import ChangeSetHandle, CommitSequence, Handle, RangeState
from statebackend.objectstore import MemoryStore
from statebackend.objectstore.scoped import CountingStore, ScopedStore
from statebackend.testing import FaultyStore, Hold, run_virtual
from statebackend.testing.virtual_time import VirtualClock
from tests import invariants
from tests.backend.conftest import local_segments
from tests.changes import set_of_rows
from tests.checkpoint.bases import JOB, Job, checkpoint, keys_in, shape
from tests.knobs import settings_with
from tests.local.test_segments import ReadsTogether
from tests.weighed import Weighed, WeighedStore

CHECKPOINTS = 6


@pytest.fixture
async def written(tmp_path: Path) -> sb.Settings:
    """A job with six checkpoints of ten keys each, one segment per checkpoint."""
    settings = settings_with(
        job="fleet",
        primary=f"file://{tmp_path}/primary",
        local=(f"{tmp_path}/local",),
        persist_delay_s=0.0,
        inline_bytes_max=0,
        upload__timeout_s=0.0,  # a slow machine must cost neither another attempt nor a local copy
        secondary_grace_s=60.0,
    )
    async with sb.open_backend(settings) as backend:
        numbers = backend.value_state("n", int)
        for checkpoint in range(CHECKPOINTS):
            for key in range(10):
                numbers[key + 5 * checkpoint] = checkpoint
            await backend.checkpoint(checkpoint)
    return settings


def expected() -> dict[sb.Key, int]:
    """What six checkpoints of `written` add up to."""
    return {key + 5 * checkpoint: checkpoint for checkpoint in range(CHECKPOINTS) for key in range(10)}


async def restore(settings: sb.Settings, *, read_only: bool = False) -> sb.RestoreReport:
    """Open the job and check that its state is right, wherever it came from."""
    async with sb.open_backend(settings, read_only=read_only) as backend:
        assert dict(backend.value_state("n", int)) == expected()
        assert backend.restored is not None
        return backend.restored


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def replace_with_another(path: Path) -> None:
    other = next(each for each in path.parent.iterdir() if each != path)
    path.write_bytes(other.read_bytes())


async def test_an_intact_local_copy_spares_the_primary(written: sb.Settings) -> None:
    """Every file is local; not one segment is asked of the primary."""
    report = await restore(written)
    assert (report.files_local, report.files_primary, report.fallbacks) == (CHECKPOINTS, 0, ())
    assert report.changes == 10 * CHECKPOINTS


async def test_without_a_local_copy_everything_comes_from_the_primary_and_is_local_the_next_time(
    written: sb.Settings, tmp_path: Path
) -> None:
    """A lost disk costs one restore from the primary, and is filled again by it."""
    for path in local_segments(tmp_path / "local"):
        path.unlink()
    report = await restore(written)
    assert (report.files_local, report.files_primary) == (0, CHECKPOINTS)
    assert [fallback.repaired for fallback in report.fallbacks] == [True] * CHECKPOINTS
    assert {fallback.reason for fallback in report.fallbacks} == {"missing"}
    assert (await restore(written)).files_local == CHECKPOINTS


@pytest.mark.parametrize("damage", [flip, cut, lengthen, replace_with_another])
async def test_one_bad_local_file_comes_from_the_primary_and_is_repaired(
    written: sb.Settings, damage: Callable[[Path], None], tmp_path: Path
) -> None:
    """That one file is read from the primary, the others locally; afterwards the bad file equals the primary's.

    Row: section 30, local: one of three log files missing locally.
    """
    bad = local_segments(tmp_path / "local")[2]
    damage(bad)
    report = await restore(written)
    assert (report.files_local, report.files_primary) == (CHECKPOINTS - 1, 1)
    (fallback,) = report.fallbacks
    assert (fallback.name, fallback.repaired) == (f"segments/{bad.name}", True)
    assert bad.read_bytes() == (tmp_path / "primary/fleet/segments" / bad.name).read_bytes()
    assert (await restore(written)).fallbacks == ()


async def test_of_files_read_together_some_may_be_bad(written: sb.Settings, tmp_path: Path) -> None:
    """Each of them comes from the primary and is repaired; the order in which all are applied stays."""
    first, second, _, fourth, *_ = local_segments(tmp_path / "local")
    first.unlink()
    flip(second)
    cut(fourth)
    report = await restore(written)
    assert (report.files_local, report.files_primary) == (CHECKPOINTS - 3, 3)
    assert {each.name.removeprefix("segments/") for each in report.fallbacks} == {
        bad.name for bad in (first, second, fourth)
    }
    assert all(each.repaired for each in report.fallbacks)
    assert (await restore(written)).fallbacks == ()


def test_small_neighbours_are_read_together_and_a_large_file_alone() -> None:
    """A group is bounded by its files and by its bytes, which are in memory at one time."""
    small = GROUP_BYTES_MAX // 4
    sizes = [small, small, GROUP_BYTES_MAX, GROUP_BYTES_MAX + 1, small, *[1] * (2 * GROUP_FILES_MAX)]
    reads = [SegmentRead(Handle(str(number), 0, size, 0), ()) for number, size in enumerate(sizes)]
    groups = list(grouped(reads))
    assert [read for group in groups for read in group] == reads
    assert [len(group) for group in groups] == [2, 1, 1, GROUP_FILES_MAX, GROUP_FILES_MAX, 1]
    assert list(grouped([])) == []


async def test_the_small_local_copies_of_a_group_are_read_by_one_call() -> None:
    """And verified each for itself."""
    store = ReadsTogether()
    handles = [Handle(str(number), 0, 3, checksum_of((b"abc",))) for number in range(5)]
    for handle in handles:
        await store.put(handle.key, [b"abc" if handle.key != "2" else b"abd"])
    threads = WorkerThreads(cpu_threads_max=1, io_threads_max=1)
    fetcher = Fetcher(MemoryStore(), at_hand={}, threads=threads)
    found = await fetcher.local_copies(handles, LocalSegments([store]))
    assert store.asked == [5]
    assert [each if isinstance(each, bytes) else each.name for each in found] == [b"abc", b"abc", "2", b"abc", b"abc"]


async def test_a_lost_primary_segment_does_not_matter_while_the_local_copy_is_good(
    written: sb.Settings, tmp_path: Path
) -> None:
    """The local copy is believed after verification against the commit, not against the primary's object."""
    for path in (tmp_path / "primary/fleet/segments").iterdir():
        path.unlink()
    assert (await restore(written)).files_primary == 0


async def test_leftovers_of_killed_attempts_are_pruned_locally(written: sb.Settings, tmp_path: Path) -> None:
    """A local file that no commit reaches is gone after the next open; what is needed stays."""
    needed = set(local_segments(tmp_path / "local"))
    orphan = tmp_path / "local/job_fleet/taskowned/segments" / f"00000001-00000099-{0:032x}"
    orphan.write_bytes(b"half of a segment")
    await restore(written)
    assert set(local_segments(tmp_path / "local")) == needed


async def test_fetching_is_bounded_and_applying_is_ordered() -> None:
    """With three fetches at a time a held first file stops the rest after two more, and the last value still wins."""
    store = MemoryStore()
    settings = sb.Settings(
        job="fleet", primary="memory://unused", persist_delay_s=0.0, restore_concurrency_max=3, inline_bytes_max=0
    )
    async with sb.open_backend(settings, store=store) as backend:
        for checkpoint in range(8):
            backend.value_state("n", int)["k"] = checkpoint
            await backend.checkpoint(checkpoint)
        assert backend.newest is not None
    gates = [Hold(operation="get", key="fleet/segments/*", nth=nth) for nth in range(1, 9)]
    held = FaultyStore(store, gates)

    async with anyio.create_task_group() as tasks:
        results: list[int] = []

        async def open_it() -> None:
            async with sb.open_backend(settings, store=held) as backend:
                results.append(backend.value_state("n", int)["k"])

        tasks.start_soon(open_it)
        await gates[2].reached.wait()
        await anyio.wait_all_tasks_blocked()
        assert [gate.reached.is_set() for gate in gates] == [True] * 3 + [False] * 5
        for gate in reversed(gates):
            gate.release()
    assert results == [7]


@pytest.mark.parametrize("pieces", [1, 6])
async def test_files_are_decoded_while_those_before_them_are_applied(
    written: sb.Settings, monkeypatch: pytest.MonkeyPatch, pieces: int
) -> None:
    """One step ahead and no further: so much is in memory. Whether they are read together or each alone."""
    monkeypatch.setattr("statebackend._checkpoint.restore.GROUP_FILES_MAX", 1 if pieces > 1 else 32)
    ahead, replay = KeyedStates.ahead, KeyedStates.replay
    steps: list[str] = []
    beside = threading.Event()

    def note_ahead(states: KeyedStates, parts: Iterator[Changes]) -> Iterator[Changes]:
        steps.append("decoded")
        if steps.count("decoded") == 2:
            beside.set()
        return ahead(states, parts)

    def note_replay(states: KeyedStates, parts: Iterable[Changes]) -> frozenset[int]:
        assert beside.wait(30), "the next file is not decoded while this one is being applied"
        assert steps.count("decoded") <= max(steps.count("applied") + 2, CHECKPOINTS // pieces)
        steps.append("applied")
        return replay(states, parts)

    monkeypatch.setattr(KeyedStates, "ahead", note_ahead)
    monkeypatch.setattr(KeyedStates, "replay", note_replay)
    assert (await restore(written)).changes == 10 * CHECKPOINTS
    assert steps.count("decoded") == steps.count("applied") == CHECKPOINTS


async def test_of_a_shared_segment_an_owner_of_few_key_groups_fetches_its_own_part_only() -> None:
    """Two change sets in one segment, one of them small and wanted: a ranged read of its frame, not of the file."""
    store = MemoryStore()
    settings = sb.Settings(
        job="fleet",
        primary="memory://unused",
        compression="none",
        preemptive_persist_threshold_bytes=4000,
        inline_bytes_max=0,
    )
    async with sb.open_backend(settings, store=store) as backend:
        texts = backend.value_state("n", str)
        small = next(key for key in range(1000) if key_group(key, 128) == 7)
        large = [key for key in range(1000) if key_group(key, 128) > 8][:100]
        for key in large:
            texts[key] = "x" * 100
        texts[small] = "y" * 100
        await backend.checkpoint(1)
    metered = CountingStore(store)
    async with sb.open_backend(settings, store=metered, key_groups=sb.owners.KeyGroupRange(7, 8)) as backend:
        assert dict(backend.value_state("n", str)) == {small: "y" * 100}
        assert backend.restored is not None
        assert backend.restored.bytes_primary < 8000
    assert metered.requests["get_range"] > 0


@pytest.mark.parametrize("read_only", [False, True])
async def test_a_local_copy_that_hangs_is_slow_and_the_primary_is_read(
    read_only: bool, written: sb.Settings, tmp_path: Path
) -> None:
    """Every file comes from the primary, each fallback says why, and nothing waits for the hanging one."""
    (first, *others) = local_segments(tmp_path / "local")
    first.unlink()
    os.mkfifo(first)  # nobody writes to it: opening it hangs as a dead disk does
    try:
        hurried = msgspec.structs.replace(written, local_read_timeout_s=0.2, close_timeout_s=0.05)
        report = await restore(hurried, read_only=read_only)
    finally:
        os.close(os.open(first, os.O_RDWR))  # the thread that was left behind goes on
    reasons = {fallback.name: fallback.reason for fallback in report.fallbacks}
    assert reasons.get(f"segments/{first.name}") == "slow"
    assert set(reasons.values()) == {"slow"}
    assert report.files_primary == len(reasons)
    assert report.files_local + report.files_primary == len(others) + 1


async def test_after_a_restore_from_the_primary_the_next_local_one_is_whole(
    written: sb.Settings, tmp_path: Path
) -> None:
    """Row: section 30, local: remote restore without rescaling, one checkpoint, failure before materialisation.

    Hazard 9: a local copy of only what came after the restore is readable, and would be a wrong state.
    """
    for path in local_segments(tmp_path / "local"):
        path.unlink()
    async with sb.open_backend(written) as backend:
        backend.value_state("n", int)[0] = 77
        assert (await backend.checkpoint(CHECKPOINTS)).local
    async with sb.open_backend(written) as backend:
        assert dict(backend.value_state("n", int)) == expected() | {0: 77}
        assert backend.restored is not None
        assert backend.restored.files_primary == 0


# ------------------------------------------------------------------------------------------------------- with bases

LARGE = "x" * 70_000
"""A key group of its own frame."""


class _Metered(ScopedStore):
    """Counts what is read of segments."""

    def __init__(self, store: sb.ObjectStore) -> None:
        super().__init__(store, "")
        self.read_bytes = 0

    async def get(self, key: str) -> bytes:
        return self._count(key, await super().get(key))

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        return self._count(key, await super().get_range(key, offset, length))

    def _count(self, key: str, data: bytes) -> bytes:
        self.read_bytes += len(data) if "segments/" in key else 0
        return data


async def job_with_a_base(key_groups: int = 16) -> tuple[Job, dict[sb.Key, str]]:
    """A base of so many key groups with one large entry each, in one segment of a frame for each, and nothing else."""
    job = Job(materialize_handles_max=1, compression="none")
    expected: dict[sb.Key, str] = {keys_in(group, 1)[0]: f"{group} {LARGE}" for group in range(key_groups)}
    async with job.open() as backend:
        backend.value_state("t", str).update(expected)
        await checkpoint(backend)
        await checkpoint(backend)
    assert shape(await job.newest()) == (0, 1)
    job.settings = Job().settings
    return job, expected


@run_virtual
async def test_of_a_large_base_an_owner_of_few_key_groups_reads_the_index_and_its_own_frames() -> None:
    """Two groups of sixteen: their frames by one ranged read, and not much more."""
    job, expected = await job_with_a_base()
    metered = _Metered(job.store)
    async with job.open(store=metered, key_groups=sb.owners.KeyGroupRange(7, 8), read_only=True) as backend:
        assert dict(backend.value_state("t", str)) == {
            key: expected[key] for key in (keys_in(7, 1)[0], keys_in(8, 1)[0])
        }
    assert 2 * len(LARGE) < metered.read_bytes < 2 * len(LARGE) + 20_000


@pytest.mark.parametrize("bytes_max", [0, 3 * 70_000, 1 << 30])
@run_virtual
async def test_a_large_file_is_applied_in_pieces_and_counts_once(
    monkeypatch: pytest.MonkeyPatch, bytes_max: int
) -> None:
    """However many frames of it go together: each of its changes is applied once."""
    job, expected = await job_with_a_base()
    monkeypatch.setattr("statebackend._checkpoint.restore.GROUP_BYTES_MAX", bytes_max)
    async with job.open(read_only=True) as backend:
        assert dict(backend.value_state("t", str)) == expected
        assert backend.restored is not None
        assert (backend.restored.files_primary, backend.restored.changes) == (1, len(expected))


@run_virtual
async def test_an_owner_of_most_key_groups_reads_the_base_in_one_request() -> None:
    """Ranged reads of nearly all of it would cost requests for nothing."""
    job, expected = await job_with_a_base()
    counted = CountingStore(job.store)
    async with job.open(store=counted, key_groups=sb.owners.KeyGroupRange(0, 13), read_only=True) as backend:
        assert dict(backend.value_state("t", str)) == {
            key: text for key, text in expected.items() if key_group(key, 16) <= 13
        }
    assert counted.requests["get_range"] == 0


@run_virtual
async def test_the_index_of_a_base_with_many_frames_is_read_by_a_second_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tail that is read first need not hold all of it."""
    job, expected = await job_with_a_base()
    monkeypatch.setattr("statebackend._changelog.changelog_reader.TAIL_BYTES", 30)
    async with job.open(key_groups=sb.owners.KeyGroupRange(3, 3), read_only=True) as backend:
        assert dict(backend.value_state("t", str)) == {keys_in(3, 1)[0]: expected[keys_in(3, 1)[0]]}


@pytest.mark.parametrize("key_groups", [None, sb.owners.KeyGroupRange(7, 8)])
@pytest.mark.parametrize("offset", [0, 7, 8 + 7 * 70_050 + 20_000, -1, -20, -40])
@run_virtual
async def test_a_damaged_base_is_found_out_however_much_of_it_is_read(
    offset: int, key_groups: sb.owners.KeyGroupRange | None
) -> None:
    """Head, version, frame, trailer, index: an error that names the object, and never wrong state."""
    job, _ = await job_with_a_base()
    segment = await _damage_base(job, offset)
    with pytest.raises(CorruptSegmentError) as caught:
        await _read(job, key_groups)
    assert caught.value.facts["object"] == segment.key


@run_virtual
async def test_damage_in_a_frame_that_nobody_asked_for_harms_nobody() -> None:
    """It is not read."""
    job, expected = await job_with_a_base()
    await _damage_base(job, 100_000)
    assert await _read(job, sb.owners.KeyGroupRange(7, 8)) == {
        key: text for key, text in expected.items() if key_group(key, 16) in (7, 8)
    }


async def _damage_base(job: Job, offset: int) -> Handle:
    """Flip a bit of the only base."""
    (part,) = (await job.newest()).ranges
    key = f"{JOB}/{part.bases[0].segment.key}"
    content = bytearray(await job.store.get(key))
    content[offset] ^= 1
    await job.store.put(key, [bytes(content)])
    return part.bases[0].segment


@pytest.mark.parametrize("key_groups", [None, sb.owners.KeyGroupRange(7, 8)])
@run_virtual
async def test_a_missing_base_is_an_error_that_names_it(key_groups: sb.owners.KeyGroupRange | None) -> None:
    """Whether all of it or a part was wanted."""
    job, _ = await job_with_a_base()
    (part,) = (await job.newest()).ranges
    await job.store.delete(f"{JOB}/{part.bases[0].segment.key}")
    with pytest.raises(MissingObjectError) as caught:
        await _read(job, key_groups)
    assert caught.value.facts["object"] == part.bases[0].segment.key


@run_virtual
async def test_what_is_stale_in_a_base_is_passed_over() -> None:
    """It stands for some of its groups only; a key removed since is in the other ones, and stays removed."""
    job = Job(materialize_handles_max=1)
    gone, kept = keys_in(3, 1)[0], keys_in(4, 1)[0]
    async with job.open() as backend:
        await checkpoint(backend, **{gone: 1, kept: 1, keys_in(5, 1)[0]: 1})
        await checkpoint(backend)
        del backend.value_state("n", int)[gone]
        await checkpoint(backend)
        await checkpoint(backend)
    assert shape(await job.newest()) == (0, 1)
    assert await _read(job, None, "n", int) == {kept: 1, keys_in(5, 1)[0]: 1}


async def _read(
    job: Job, key_groups: sb.owners.KeyGroupRange | None, name: str = "t", type_: type = str
) -> dict[sb.Key, object]:
    async with job.open(key_groups=key_groups, read_only=True) as backend:
        return dict(backend.value_state(name, type_))


# --------------------------------------------------------------------------------------------------- after a rescale


@run_virtual
async def test_two_ranges_put_together_do_not_undo_each_other() -> None:
    """FLINK-26766. Split, one half goes on, together again: what both have from before comes back once for each group.

    The changes of before stand in both halves, and are applied after those that the left half has made since.
    """
    job = Job()
    left, right = keys_in(2, 1)[0], keys_in(13, 1)[0]
    async with job.open() as backend:
        await checkpoint(backend, **{left: 1, right: 1})
    newest = await job.newest()
    parts = [range_of(newest, half) for half in (sb.owners.KeyGroupRange(0, 7), sb.owners.KeyGroupRange(8, 15))]
    handle = await _store_change(job, StateChange(2, Operation.SET, 0, left, b"\x02"))
    changed = RangeState(parts[0].key_groups, (*parts[0].changelog, handle))
    await _append(job, newest, changed, parts[1])
    assert await _read(job, None, "n", int) == {left: 2, right: 1}
    job.settings = Job(materialize_handles_max=1).settings
    async with job.open() as backend:
        await checkpoint(backend)
        await checkpoint(backend)
    commit = await job.newest()
    assert shape(commit) == (0, 1)
    assert await _read(job, None, "n", int) == {left: 2, right: 1}
    invariants.assert_commit_is_whole(commit, {k: await job.store.get(f"{JOB}/{k}") for k in commit.segments()})


async def _store_change(job: Job, change: StateChange) -> ChangeSetHandle:
    """A segment with one change, as the owner of another range would have uploaded it."""
    encoded = encode_segment([set_of_rows("0-7", 0, [change])], "none")
    segment = Handle("segments/by-hand", 0, encoded.size_bytes, encoded.checksum)
    await job.store.put(f"{JOB}/{segment.key}", encoded.chunks)
    (entry,) = encoded.entries
    return ChangeSetHandle(
        segment, entry.log_id, entry.sequence_number, entry.offset, entry.length, entry.key_groups, entry.records
    )


async def _append(job: Job, newest: Commit, *ranges: RangeState) -> None:
    """The next commit, of several ranges."""
    sequence = CommitSequence(newest.sequence + 1)
    commit = msgspec.structs.replace(
        newest,
        sequence=sequence,
        checkpoint_id=sb.ids.CheckpointId(newest.checkpoint_id + 1),
        parent=newest.sequence,
        stamp="by hand",
        ranges=ranges,
    )
    key = entry_key(sequence)
    await job.store.put_if_absent(f"{JOB}/{key}", [encode_entry(commit, key).body])


@run_virtual
async def test_large_files_are_fetched_fewer_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen of 16 MiB took 256 MiB, however small the process may be: to restore, and to verify."""
    store, settings = WeighedStore(), settings_with(job="fleet", primary="memory://unused", inline_bytes_max=0)
    async with sb.open_backend(settings, store=store, clock=VirtualClock()) as backend:
        for number in range(16):
            backend.value_state("large", bytes)[number] = random.Random(number).randbytes(10_000)
            await backend.checkpoint(number)
    for module in (restoring, verify):
        monkeypatch.setattr(module, "FETCHED_BYTES_MAX", 41_000)
    monkeypatch.setattr(restoring, "GROUP_BYTES_MAX", 10_000)
    Weighed.most = 0
    async with sb.open_backend(settings, store=store, clock=VirtualClock()) as backend:
        assert len(backend.value_state("large", bytes)) == 16
    assert 30_000 < Weighed.most < 80_000
    Weighed.most = 0
    report = await sb.verify(settings, store=store)
    assert not report.damages
    assert 30_000 < Weighed.most < 80_000


@pytest.mark.parametrize("size_bytes", [GROUP_BYTES_MAX, GROUP_BYTES_MAX + 1])
def test_a_file_of_which_nothing_is_left_counts_as_read(size_bytes: int) -> None:
    """Only key groups without entries still stand in a base: a large one was never done, and a share ended below 1."""
    read = SegmentRead(Handle("segments/a", 0, size_bytes, 0), ())
    ((piece,),) = _cut([Fetched(Frames(read, ()), size_bytes, local=True)])
    assert (piece.frames.views, piece.is_last, piece.file.size_bytes) == ((), True, size_bytes)
