"""What `open_backend` promises to its user."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec
import pytest
from anyio._backends._asyncio import _task_states

import statebackend as sb
from statebackend._log.names import HINT_KEY, entry_key
from statebackend.errors import (
    BackendClosedError,
    CheckpointExistsError,
    CheckpointNotFoundError,
    FencedError,
    InputError,
    OutcomeUnknownError,
    StoreUnavailableError,
    UploadError,
    ValueEncodeError,
)
from statebackend.objectstore import MemoryStore
from statebackend.testing import Fail, FaultyStore, Hold
from tests.at_work import SAFETY_NET_S
from tests.backend.conftest import Leg, local_segments, tree_of
from tests.knobs import settings_with


async def test_a_new_job_is_empty_and_opening_it_only_claims_it(settings: sb.Settings, tmp_path: Path) -> None:
    """No commit and no restore; in the primary a claim, and the hint that says where it lies."""
    async with sb.open_backend(settings) as backend:
        assert backend.restored is None
        assert backend.newest is None
        assert backend.epoch == 1
        assert dict(backend.value_state("legs", Leg)) == {}
    assert set(tree_of(tmp_path / "primary")) == {f"fleet/{entry_key(0)}", f"fleet/{HINT_KEY}"}
    async with sb.open_backend(settings) as backend:
        assert backend.epoch == 2


async def test_opened_to_read_it_writes_nothing_and_fences_nobody(settings: sb.Settings, tmp_path: Path) -> None:
    """Neither copy has changed by a byte, a damaged one included; a checkpoint is refused; the writer goes on."""
    async with sb.open_backend(settings) as writer:
        for number in (1, 2):
            writer.value_state("n", int)["k"] = number
            await writer.checkpoint(number)
    async with sb.open_backend(settings) as writer:
        (_, damaged) = local_segments(tmp_path / "local")
        damaged.write_bytes(b"damaged")
        before = tree_of(tmp_path)
        async with sb.open_backend(settings, read_only=True) as reader:
            numbers = reader.value_state("n", int)
            assert numbers["k"] == 2
            assert reader.restored is not None
            assert [fallback.repaired for fallback in reader.restored.fallbacks] == [False]
            numbers["k"] = 3
            with pytest.raises(InputError):
                await reader.checkpoint(3)
            assert [summary.checkpoint_id async for summary in reader.history()] == [2, 1]
        async with sb.open_backend(settings, read_only=True, checkpoint_id=1) as reader:
            assert reader.value_state("n", int)["k"] == 1
        assert tree_of(tmp_path) == before
        await writer.checkpoint(3)


async def test_opened_to_read_where_nothing_is_it_makes_nothing(settings: sb.Settings, tmp_path: Path) -> None:
    """No directory, no lock, no claim: the job is empty."""
    async with sb.open_backend(settings, read_only=True) as reader:
        assert reader.newest is None
    assert not (tmp_path / "primary").exists()
    assert not (tmp_path / "local").exists()


async def test_a_checkpoint_brings_everything_before_it_back(settings: sb.Settings) -> None:
    """Values of every key type come back as they were at the checkpoint, and later changes do not."""
    keys: list[sb.Key] = ["N14228", 42, -1, b"\x00\xff", ("JFK", 7, b"x"), ("a", ("b", 1))]
    async with sb.open_backend(settings) as backend:
        legs = backend.value_state("legs", Leg)
        for number, key in enumerate(keys):
            legs[key] = Leg("EWR", "IAH", number)
        await backend.checkpoint(1)
        legs["N14228"] = Leg("IAH", "LGA", 99)
        del legs[42]
    async with sb.open_backend(settings) as backend:
        assert dict(backend.value_state("legs", Leg)) == {
            key: Leg("EWR", "IAH", number) for number, key in enumerate(keys)
        }


async def test_deletions_are_durable(settings: sb.Settings) -> None:
    """A key deleted before a checkpoint does not come back from an earlier segment."""
    async with sb.open_backend(settings) as backend:
        legs = backend.value_state("legs", Leg)
        legs["a"], legs["b"] = Leg("x", "y"), Leg("x", "z")
        await backend.checkpoint(1)
        del legs["a"]
        await backend.checkpoint(2)
    async with sb.open_backend(settings) as backend:
        assert dict(backend.value_state("legs", Leg)) == {"b": Leg("x", "z")}


async def test_states_nobody_declares_are_kept(settings: sb.Settings) -> None:
    """A run that uses one state only does not lose the other."""
    async with sb.open_backend(settings) as backend:
        backend.value_state("one", int)["k"] = 1
        backend.value_state("two", str)["k"] = "2"
        await backend.checkpoint(1)
    async with sb.open_backend(settings) as backend:
        backend.value_state("one", int)["k"] = 10
        await backend.checkpoint(2)
    async with sb.open_backend(settings) as backend:
        assert backend.value_state("one", int)["k"] == 10
        assert backend.value_state("two", str)["k"] == "2"


async def test_an_unchanged_state_commits_without_a_segment(settings: sb.Settings, tmp_path: Path) -> None:
    """An empty batch advances the commit log and uploads nothing else."""
    async with sb.open_backend(settings) as backend:
        backend.value_state("n", int)["k"] = 1
        await backend.checkpoint(1, source=sb.SourceMark("q", 0))
        info = await backend.checkpoint(2, source=sb.SourceMark("q", 1))
        assert (info.changes, info.requests, info.local) == (0, 1, True)
        assert backend.newest is not None
        assert backend.newest.source == sb.SourceMark("q", 1)
    assert len(list((tmp_path / "primary/fleet/segments").iterdir())) == 1


async def test_a_checkpoint_writes_both_copies_and_says_what_it_cost(settings: sb.Settings, tmp_path: Path) -> None:
    """Bytes on the disk equal the bytes reported, and the two copies are equal."""
    async with sb.open_backend(settings) as backend:
        numbers = backend.value_state("n", int)
        for key in range(1000):
            numbers[key] = key
        info = await backend.checkpoint(5)
    primary, local = tree_of(tmp_path / "primary/fleet"), local_segments(tmp_path / "local")
    (segment,) = [content for name, content in primary.items() if name.startswith("segments/")]
    assert [path.read_bytes() for path in local] == [segment]
    assert info.local_bytes == info.primary_bytes == len(segment) + len(primary[entry_key(1)])
    assert (info.checkpoint_id, info.sequence, info.changes, info.local) == (5, 1, 1000, True)


async def test_the_same_or_a_smaller_checkpoint_id_changes_nothing(settings: sb.Settings, tmp_path: Path) -> None:
    """The id exists: an error, nothing on disk changes, and the backend goes on; a gap is legal."""
    async with sb.open_backend(settings) as backend:
        numbers = backend.value_state("n", int)
        numbers["k"] = 1
        await backend.checkpoint(7)
        numbers["k"] = 2
        before = tree_of(tmp_path)
        for taken in (7, 3):
            with pytest.raises(CheckpointExistsError):
                await backend.checkpoint(taken)
        assert tree_of(tmp_path) == before
        await backend.checkpoint(100)
    async with sb.open_backend(settings) as backend:
        assert backend.value_state("n", int)["k"] == 2


async def test_any_retained_checkpoint_can_be_opened_and_continued_as_a_branch(settings: sb.Settings) -> None:
    """Opening an older id shows that state; the next checkpoint continues it, and history follows the branch."""
    async with sb.open_backend(settings) as backend:
        for number in (1, 2, 3):
            backend.value_state("n", int)["k"] = number
            await backend.checkpoint(number * 10)
    async with sb.open_backend(settings, checkpoint_id=10) as backend:
        numbers = backend.value_state("n", int)
        assert numbers["k"] == 1
        assert backend.next_checkpoint_id == 31
        numbers["branch"] = 5
        await backend.checkpoint(31)
    async with sb.open_backend(settings) as backend:
        assert dict(backend.value_state("n", int)) == {"k": 1, "branch": 5}
        assert [summary.checkpoint_id async for summary in backend.history()] == [31, 10]
    with pytest.raises(CheckpointNotFoundError):
        async with sb.open_backend(settings, checkpoint_id=15):
            pass


async def test_an_exception_of_the_block_comes_out_as_it_is(settings: sb.Settings) -> None:
    """The user's error is not wrapped in a group, and nothing of the block is committed."""

    async def fail() -> None:
        async with sb.open_backend(settings) as backend:
            backend.value_state("n", int)["k"] = 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    async with sb.open_backend(settings) as backend:
        assert backend.newest is None


async def test_a_closed_backend_says_so(settings: sb.Settings) -> None:
    """Using it after its context gives an error of its own."""
    async with sb.open_backend(settings) as backend:
        pass
    with pytest.raises(BackendClosedError):
        backend.value_state("n", int)
    with pytest.raises(BackendClosedError):
        await backend.checkpoint(1)


async def test_a_wrong_value_leaves_the_state_as_it_was(settings: sb.Settings) -> None:
    """Nothing of a refused value reaches the next checkpoint."""
    async with sb.open_backend(settings) as backend:
        legs = backend.value_state("legs", Leg)
        legs["k"] = Leg("a", "b")
        with pytest.raises(ValueEncodeError):
            legs["k"] = Leg("a", 5)  # type: ignore[arg-type]  # the user's bug
        await backend.checkpoint(1)
    async with sb.open_backend(settings) as backend:
        assert backend.value_state("legs", Leg)["k"] == Leg("a", "b")


async def test_two_writers_of_one_job_exactly_one_commits(settings: sb.Settings) -> None:
    """The one that opened first is fenced before the other commits, deletes nothing, and does not come back."""
    async with sb.open_backend(settings) as zombie, sb.open_backend(settings) as newer:
        zombie.value_state("n", int)["k"] = 1
        newer.value_state("n", int)["k"] = 2
        with pytest.raises(FencedError):
            await zombie.checkpoint(1)
        await newer.checkpoint(1)
        with pytest.raises(BackendClosedError):
            await zombie.checkpoint(2)
        await newer.checkpoint(2)
    async with sb.open_backend(settings) as backend:
        assert backend.value_state("n", int)["k"] == 2


async def test_a_second_backend_of_the_job_leaves_the_local_copies_to_the_first(
    settings: sb.Settings, tmp_path: Path
) -> None:
    """Only the owner of the directory writes and prunes there; the other restores from it all the same."""
    async with sb.open_backend(settings) as owner:
        owner.value_state("n", int)["k"] = 1
        await owner.checkpoint(1)
        files = tree_of(tmp_path / "local")
        async with sb.open_backend(settings) as guest:
            assert guest.restored is not None
            assert (guest.restored.files_local, guest.restored.files_primary) == (1, 0)
            guest.value_state("n", int)["k"] = 2
            info = await guest.checkpoint(2)
            assert not info.local
        assert tree_of(tmp_path / "local") == files


async def test_a_commit_whose_answer_is_lost_is_ours(settings: sb.Settings) -> None:
    """The store made the object and the response was lost: the retry finds our own stamp and goes on."""
    store = FaultyStore(MemoryStore(), [Fail(operation="put_if_absent", moment="after", nth=2)])
    no_wait = settings_with(job="fleet", primary="memory://unused", persist_delay_s=0.0, upload__retry_delay_s=0.0)
    async with sb.open_backend(no_wait, store=store) as backend:
        backend.value_state("n", int)["k"] = 1
        await backend.checkpoint(1)
        await backend.checkpoint(2)
    async with sb.open_backend(no_wait, store=store) as backend:
        assert [summary.checkpoint_id async for summary in backend.history()] == [2, 1]


async def test_a_commit_that_gets_no_answer_is_neither_success_nor_failure() -> None:
    """Every attempt fails: the outcome is unknown, the backend is done for, and a new one finds what happened."""
    store = MemoryStore()
    settings = settings_with(
        job="fleet",
        primary="memory://unused",
        persist_delay_s=0.0,
        upload__retry_delay_s=0.0,
        upload__primary_outage_s=0.0,
    )
    async with sb.open_backend(settings, store=store) as backend:
        backend.value_state("n", int)["k"] = 0
        await backend.checkpoint(0)
    silent = Fail(operation="put_if_absent", nth=2, onwards=True)  # the claim comes before
    async with sb.open_backend(settings, store=FaultyStore(store, [silent])) as backend:
        backend.value_state("n", int)["k"] = 1
        with pytest.raises(OutcomeUnknownError):
            await backend.checkpoint(1)
        assert silent.matched == 1 + settings.upload.attempts_max
        with pytest.raises(BackendClosedError):
            await backend.checkpoint(1)
    async with sb.open_backend(settings, store=store) as backend:
        assert backend.value_state("n", int)["k"] == 0


async def test_a_failed_upload_fails_the_checkpoint_and_commits_nothing() -> None:
    """Uploads that never succeed are an `UploadError`; a new backend stands on the last commit."""
    store = MemoryStore()
    settings = settings_with(
        job="fleet",
        primary="memory://unused",
        persist_delay_s=0.0,
        upload__retry_delay_s=0.0,
        upload__primary_outage_s=0.0,
        inline_bytes_max=0,
    )
    refusing = FaultyStore(store, [Fail(operation="put", key="*/segments/*")])
    async with sb.open_backend(settings, store=refusing) as backend:
        backend.value_state("n", int)["k"] = 1
        with pytest.raises(UploadError) as caught:
            await backend.checkpoint(1)
        assert isinstance(caught.value.__cause__, StoreUnavailableError)
    async with sb.open_backend(settings, store=store) as backend:
        assert backend.newest is None


async def test_a_checkpoint_cancelled_before_its_commit_loses_nothing(settings: sb.Settings) -> None:
    """The changes of the cancelled checkpoint are in the next one, uploaded once."""
    store, gate = MemoryStore(), Hold(operation="put", key="*/segments/*", nth=1)
    counting = FaultyStore(store, [gate])
    async with sb.open_backend(settings, store=counting) as backend:
        numbers = backend.value_state("n", int)
        numbers["first"] = 1
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(backend.checkpoint, 1)
            await gate.reached.wait()
            tasks.cancel_scope.cancel()
        gate.release()
        assert backend.newest is None
        numbers["second"] = 2
        await backend.checkpoint(2)
    async with sb.open_backend(settings, store=store) as backend:
        assert dict(backend.value_state("n", int)) == {"first": 1, "second": 2}
    segments = [info.key async for info in store.list("fleet/segments/")]
    assert len(segments) == 2


@pytest.mark.parametrize("how", ["scope", "task"])
async def test_a_checkpoint_cancelled_during_its_commit_finishes_it(settings: sb.Settings, how: str) -> None:
    """Once the commit object is on its way its outcome is awaited, by whichever way the caller is cancelled."""
    store, gate = MemoryStore(), Hold(operation="put_if_absent", nth=2)
    async with sb.open_backend(settings, store=FaultyStore(store, [gate])) as backend:
        backend.value_state("n", int)["k"] = 1
        scope = anyio.CancelScope()

        async def checkpoint() -> None:
            with scope:
                await backend.checkpoint(1)

        task = asyncio.create_task(checkpoint())
        await gate.reached.wait()
        for _ in range(2):  # once, and once more for the impatient
            scope.cancel() if how == "scope" else task.cancel()
            await anyio.lowlevel.checkpoint()
        assert not task.done()
        gate.release()
        await asyncio.wait([task])
        assert scope.cancelled_caught if how == "scope" else task.cancelled()
        assert backend.newest is not None
        backend.value_state("n", int)["k"] = 2
        await backend.checkpoint(2)
    async with sb.open_backend(settings, store=store) as backend:
        assert backend.value_state("n", int)["k"] == 2
        assert [summary.checkpoint_id async for summary in backend.history()] == [2, 1]


async def test_checkpoints_asked_for_at_once_follow_each_other(settings: sb.Settings) -> None:
    """Two concurrent checkpoints are two commits, in order, with every change once."""
    async with sb.open_backend(settings) as backend:
        backend.value_state("n", int)["k"] = 1
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(backend.checkpoint, 1)
            tasks.start_soon(backend.checkpoint, 2)
    async with sb.open_backend(settings) as backend:
        assert [summary.checkpoint_id async for summary in backend.history()] == [2, 1]
        assert backend.value_state("n", int)["k"] == 1


async def test_without_local_roots_there_is_no_local_copy(
    with_settings: Callable[..., sb.Settings], tmp_path: Path
) -> None:
    """`local=()` turns the secondary off, and a restore reads the primary without calling it a fallback."""
    settings = with_settings(local=())
    async with sb.open_backend(settings) as backend:
        backend.value_state("n", int)["k"] = 1
        info = await backend.checkpoint(1)
        assert (info.local, info.local_bytes) == (False, 0)
    async with sb.open_backend(settings) as backend:
        assert backend.restored is not None
        assert (backend.restored.files_local, backend.restored.files_primary) == (0, 1)
        assert backend.restored.fallbacks == ()
    assert not (tmp_path / "local").exists()


async def test_a_part_of_the_key_groups_sees_only_its_keys(settings: sb.Settings) -> None:
    """Owners of disjoint ranges together restore every key once, from the same segments."""
    async with sb.open_backend(settings) as backend:
        numbers = backend.value_state("n", int)
        for key in range(500):
            numbers[key] = key
        await backend.checkpoint(1)
    seen: list[sb.Key] = []
    for first, last in ((0, 10), (11, 90), (91, 127)):
        async with sb.open_backend(settings, key_groups=sb.owners.KeyGroupRange(first, last)) as backend:
            seen += backend.value_state("n", int)
    assert sorted(seen, key=str) == sorted(range(500), key=str)


async def test_the_observer_hears_what_happened(settings: sb.Settings, tmp_path: Path) -> None:
    """One upload, one commit, one restore: each is told once, with what the caller saw."""

    class Recorder(sb.Observer):
        def __init__(self) -> None:
            self.heard: list[object] = []

        def segment_uploaded(
            self, segment: sb.abc.Segment, uploaded: sb.abc.UploadedSegment, *, attempt: int, seconds: float
        ) -> None:
            self.heard.append(("uploaded", uploaded.primary.length, attempt, uploaded.local is not None))

        def checkpoint_committed(self, info: sb.CheckpointInfo) -> None:
            self.heard.append(info)

        def restored(self, report: sb.RestoreReport) -> None:
            self.heard.append(report)

    recorder = Recorder()
    async with sb.open_backend(settings, observer=recorder) as backend:
        backend.value_state("n", int)["k"] = 1
        info = await backend.checkpoint(1)
        (path,) = local_segments(tmp_path / "local")
        assert recorder.heard == [("uploaded", path.stat().st_size, 1, True), info]
    async with sb.open_backend(settings, observer=recorder) as backend:
        assert recorder.heard[2:] == [backend.restored]


async def test_a_checkpoint_is_local_only_while_every_segment_of_it_is(settings: sb.Settings, tmp_path: Path) -> None:
    """A copy that could not be repaired at the restore is missing in every checkpoint that needs it.

    Row: section 30, local: base local, delta not local (and vice versa). Hazard 9.
    """
    async with sb.open_backend(settings) as backend:
        backend.value_state("n", int)["k"] = 1
        await backend.checkpoint(1)
    for path in local_segments(tmp_path / "local"):
        path.unlink()
    tight = msgspec.structs.replace(settings, local_bytes_max=1)
    async with sb.open_backend(tight) as backend:
        assert backend.restored is not None
        assert [fallback.repaired for fallback in backend.restored.fallbacks] == [False]
        assert not (await backend.checkpoint(2)).local
    async with sb.open_backend(settings) as backend:
        assert (await backend.checkpoint(3)).local


async def test_after_rescaling_a_part_is_local_only_where_all_it_needs_is() -> None:
    """FLINK-34667. What the whole had on its disk, the halves have to fetch; where that cannot be kept, nobody says so.

    Row: section 30, rescale: local state after rescaling, before the first materialisation.
    """
    store = MemoryStore()
    settings = sb.Settings(
        job="fleet", primary="memory://unused", max_parallelism=2, persist_delay_s=0.0, inline_bytes_max=0
    )
    async with sb.open_backend(settings, store=store, local_stores=[MemoryStore()]) as backend:
        backend.value_state("n", int).update({number: number for number in range(20)})
        assert (await backend.checkpoint(1)).local
    for broken in (False, True):
        local = FaultyStore(MemoryStore(), [Fail(operation="put", nth=1)] if broken else [])
        half = sb.owners.KeyGroupRange(1, 1)
        async with sb.open_backend(settings, store=store, local_stores=[local], key_groups=half) as backend:
            backend.value_state("n", int).update(dict.fromkeys(list(backend.value_state("n", int)), -1))
            snapshot = await backend.snapshot(2)
            assert snapshot.local_bytes == snapshot.primary_bytes > 0, "its own changes have a local copy"
            assert snapshot.local == (not broken)


@pytest.mark.parametrize("hangs", [False, True])
async def test_leaving_waits_for_superseded_copies_to_go_and_not_for_a_disk_that_hangs(
    with_settings: Callable[..., sb.Settings], hangs: bool
) -> None:
    """The run that superseded them may be the last one on this host."""
    local = FaultyStore(MemoryStore(), [hold := Hold(operation="delete")])
    settings = with_settings(secondary_grace_s=0.0 if hangs else 60.0)
    async with (
        anyio.create_task_group() as tasks,
        sb.open_backend(settings, store=MemoryStore(), local_stores=[local]) as backend,
    ):
        await backend.checkpoint(1)
        await backend.checkpoint(2)
        await hold.reached.wait()
        if not hangs:
            tasks.start_soon(release_when_blocked, hold)
    assert len([info async for info in local.list("")]) == (2 if hangs else 1)


async def release_when_blocked(hold: Hold) -> None:
    """Let what is held go on when nothing else can."""
    await anyio.wait_all_tasks_blocked()
    hold.release()


async def test_a_job_that_is_left_leaves_no_thread_behind(settings: sb.Settings) -> None:
    """A stream that fails again and again opens its job each time."""
    before, kept = set(threading.enumerate()), []
    for _ in range(3):
        async with sb.open_backend(settings) as backend:
            kept.append(backend)  # as an error's traceback does
            backend.value_state("n", int)["k"] = 1
            await backend.checkpoint(backend.next_checkpoint_id)
    own = [thread for thread in set(threading.enumerate()) - before if "statebackend" in thread.name]
    for thread in own:
        thread.join(SAFETY_NET_S)
    assert not [thread for thread in own if thread.is_alive()]


async def test_an_owner_adds_no_scope_to_its_caller_s(with_settings: Callable[..., sb.Settings]) -> None:
    """Hundreds are opened by one task, each within the others: all of them would be asked with each call."""

    def scope() -> object:
        state = _task_states.get(asyncio.current_task())
        return None if state is None else state.cancel_scope

    settings = with_settings(local=())
    async with sb.owners.open_coordinator(settings):
        before = scope()
        async with sb.open_backend(settings, key_groups=sb.owners.KeyGroupRange(0, settings.max_parallelism - 1)):
            assert scope() is before
