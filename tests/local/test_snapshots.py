"""The local snapshots of one owner: which are stored, which are removed, and which a later process finds."""

import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from statebackend._codec.local_snapshot import LocalSnapshot, decode_local_snapshot, encode_local_snapshot
from statebackend._local.layout import LocalLayout
from statebackend._local.snapshot_directories import SNAPSHOT_NAME, LocalSnapshots, open_local_snapshots
from statebackend.errors import InputError, StoreUnavailableError
from statebackend.ids import ChangeSetHandle, CheckpointId, Handle, KeyGroupRange, SequenceNumber
from tests.at_work import plenty

GROUPS = KeyGroupRange(0, 63)


def layout_of(path: Path, roots: int = 2) -> LocalLayout:
    return LocalLayout(tuple(path / f"root{number}" for number in range(roots)), "fleet", "legs", GROUPS)


def snapshot(number: int, *, key: str = "segments/a", **changes: object) -> LocalSnapshot:
    """The snapshot of checkpoint `number`, with one change set."""
    handle = ChangeSetHandle(Handle(key, 0, 100, 7), "0-63", SequenceNumber(number), 8, 50, KeyGroupRange(3, 5), 2)
    facts = {"job": "fleet", "operator": "legs", "key_groups": GROUPS, "changelog": (handle,)} | changes
    return LocalSnapshot(checkpoint_id=CheckpointId(number), **facts)  # type: ignore[arg-type]


async def open_with(path: Path, *numbers: int) -> LocalSnapshots:
    """A store with these snapshots in it."""
    store = await open_local_snapshots(layout_of(path), plenty())
    for number in numbers:
        await store.store(snapshot(number))
    return store


def on_disk(path: Path) -> set[str]:
    """The checkpoint directories of all roots and owners."""
    return {found.name for found in path.glob("root*/job_*/op_*/chk_*")}


def found(path: Path, pattern: str) -> list[str]:
    """The paths below `path` that match."""
    return sorted(str(each.relative_to(path)) for each in path.glob(pattern))


def kept(store: LocalSnapshots, *numbers: int) -> list[int]:
    """Those of `numbers` that the store has; their records are on the disk, whole."""
    found = [number for number in numbers if number in store.checkpoints]
    assert [record_of(store, number) for number in found] == [snapshot(number) for number in found]
    return found


def record_of(store: LocalSnapshots, number: int) -> LocalSnapshot:
    """What the disk says of a checkpoint."""
    path = store.layout.checkpoint_directory(CheckpointId(number)) / SNAPSHOT_NAME
    return decode_local_snapshot(path.read_bytes(), str(path))


async def test_directories_are_made_with_a_snapshot_and_for_this_user_only(tmp_path: Path) -> None:
    """Row: SnapshotDirectoryTest.mkdirs. Both levels; opening makes none."""
    store = await open_with(tmp_path)
    directory = store.layout.checkpoint_directory(CheckpointId(0))
    assert not directory.parent.exists()
    await store.store(snapshot(0))
    assert {path.stat().st_mode & 0o777 for path in (directory, directory.parent)} == {0o700}


async def test_what_is_stored_is_there(tmp_path: Path) -> None:
    """Row: TaskLocalSnapshotsImplTest.storeAndRetrieve. Nothing before, nothing for an unknown id."""
    store = await open_with(tmp_path)
    assert kept(store, 0, 1, 2) == []
    for number in range(3):
        await store.store(snapshot(number))
    assert kept(store, 0, 1, 2, 4) == [0, 1, 2]
    assert on_disk(tmp_path) == {"chk_0", "chk_1", "chk_2"}


async def test_pruning_removes_what_is_not_to_be_kept(tmp_path: Path) -> None:
    """Row: TaskLocalSnapshotsImplTest.pruneCheckpoints. FLINK-8777: a restore keeps the one that it stands on."""
    store = await open_with(tmp_path, 0, 1, 2)
    await store.prune(lambda checkpoint_id: checkpoint_id == 2)
    assert kept(store, 0, 1, 2) == [2]
    assert on_disk(tmp_path) == {"chk_2"}


async def test_confirming_removes_what_is_older(tmp_path: Path) -> None:
    """Row: TaskLocalSnapshotsImplTest.confirmCheckpoint."""
    store = await open_with(tmp_path, 0, 1, 2)
    await store.confirm(CheckpointId(2))
    assert kept(store, 0, 1, 2) == [2]
    assert on_disk(tmp_path) == {"chk_2"}


async def test_aborting_removes_that_one_only(tmp_path: Path) -> None:
    """Row: TaskLocalSnapshotsImplTest.abortCheckpoint."""
    store = await open_with(tmp_path, 0, 1, 2, 3)
    await store.abort(CheckpointId(2))
    assert kept(store, 0, 1, 2, 3) == [0, 1, 3]
    assert on_disk(tmp_path) == {"chk_0", "chk_1", "chk_3"}


async def test_an_empty_store_has_nothing_and_makes_nothing(tmp_path: Path) -> None:
    """Row: TaskLocalSnapshotsImplTest.retrieveNullIfNoPersistedLocalState."""
    store = await open_with(tmp_path)
    assert kept(store, 0) == []
    assert found(tmp_path, "*") == []


async def test_a_later_process_finds_what_was_stored(tmp_path: Path) -> None:
    """Row: TaskLocalSnapshotsImplTest.retrievePersistedLocalStateFromDisc. FLINK-25817."""
    await open_with(tmp_path, 0, 1)
    store = await open_with(tmp_path)
    assert set(store.checkpoints) == {0, 1}
    assert kept(store, 0, 1) == [0, 1]


async def test_what_an_earlier_process_left_is_pruned_like_all_else(tmp_path: Path) -> None:
    """17.3: a snapshot that was found on the disk, and never asked for, must not stay for ever. Hazard 18."""
    await open_with(tmp_path, 0, 1)
    store = await open_with(tmp_path, 2)
    await store.confirm(CheckpointId(2))
    assert on_disk(tmp_path) == {"chk_2"}


async def test_a_bit_that_flips_anywhere_in_a_record_is_mended(tmp_path: Path) -> None:
    """Row: TaskLocalSnapshotsImplTest.deletesLocalStateIfRetrievalFails. The commit has all that the record says."""
    store = await open_with(tmp_path, 0)
    path = store.layout.checkpoint_directory(CheckpointId(0)) / SNAPSHOT_NAME
    whole = path.read_bytes()
    for offset in range(len(whole)):
        damaged = bytearray(whole)
        damaged[offset] ^= 1 << offset % 8
        path.write_bytes(damaged)
        assert await store.mend(snapshot(0))
        assert path.read_bytes() == whole


@pytest.mark.parametrize("other", [snapshot(1), snapshot(0, job="other"), snapshot(0, key="segments/b")])
async def test_a_record_of_other_files_is_not_mended(tmp_path: Path, other: LocalSnapshot) -> None:
    """It is whole, so what lies beside it is not what the commit names."""
    store = await open_with(tmp_path, 0)
    path = store.layout.checkpoint_directory(CheckpointId(0)) / SNAPSHOT_NAME
    path.write_bytes(encode_local_snapshot(other))
    assert not await store.mend(snapshot(0))
    assert path.read_bytes() == encode_local_snapshot(other)


async def test_what_was_never_complete_goes_at_the_next_start(tmp_path: Path) -> None:
    """Row: section 30, local: process restart with a corrupt metadata file, with orphans.

    A directory without its snapshot, and one that lies where nobody looks, since there is another root.
    """
    first = await open_with(tmp_path, 0, 1)
    (first.layout.checkpoint_directory(CheckpointId(2)) / "part").mkdir(parents=True)
    shutil.copytree(
        first.layout.checkpoint_directory(CheckpointId(0)), first.layout.owner_directory(CheckpointId(1)) / "chk_0"
    )
    (first.layout.owner_directory(CheckpointId(0)) / "notes").write_text("not ours")
    store = await open_with(tmp_path)
    assert kept(store, 0, 1, 2) == [0, 1]
    assert {path.rpartition("/")[2] for path in found(tmp_path, "root*/job_*/op_*/*")} == {"chk_0", "chk_1", "notes"}


async def test_an_older_checkpoint_that_comes_late_is_not_kept(tmp_path: Path) -> None:
    """Row: section 30, local: store for an older checkpoint after a newer one."""
    store = await open_with(tmp_path, 3)
    await store.store(snapshot(2))
    assert kept(store, 2, 3) == [3]
    await store.abort(CheckpointId(3))
    await store.confirm(CheckpointId(5))
    await store.store(snapshot(4))
    assert kept(store, 3, 4) == []
    assert on_disk(tmp_path) == set()


async def test_a_confirmation_that_comes_late_takes_nothing_back(tmp_path: Path) -> None:
    """What is older than the newest commit is not kept, whichever commit was heard of last."""
    store = await open_with(tmp_path)
    for confirmed in (5, 3, 5, 4):
        await store.confirm(CheckpointId(confirmed))
        await store.store(snapshot(4))
        assert kept(store, 3, 4) == []
    await store.store(snapshot(5))
    assert kept(store, 4, 5) == [5]


async def test_storing_again_replaces(tmp_path: Path) -> None:
    """An attempt at the same checkpoint: the last one counts, also behind a newer one."""
    store = await open_with(tmp_path, 1, 2)
    again = snapshot(1, key="segments/b")
    await store.store(again)
    assert record_of(store, 1) == again


@pytest.mark.parametrize("change", [{"job": "other"}, {"operator": "other"}, {"key_groups": KeyGroupRange(0, 31)}])
async def test_another_owner_s_snapshot_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    """It would be taken for ours."""
    store = await open_with(tmp_path)
    with pytest.raises(InputError):
        await store.store(snapshot(0, **change))
    assert on_disk(tmp_path) == set()


async def test_a_disk_that_does_not_take_it_is_an_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told to the caller, who has a primary; and nothing half written is found later."""

    def refuse(_: int) -> None:
        raise OSError("made to fail by a test")

    store = await open_with(tmp_path, 0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        for number in (1, 0):
            with pytest.raises(StoreUnavailableError):
                await store.store(snapshot(number))
    assert kept(store, 0, 1) == []
    assert on_disk(tmp_path) == set()
    await store.store(snapshot(2))
    assert kept(store, 2) == [2]


async def test_removing_never_fails(tmp_path: Path) -> None:
    """A committed checkpoint does not fail for what the disk does with an old one."""
    store = await open_with(tmp_path, 0, 1)
    directory = store.layout.checkpoint_directory(CheckpointId(0))
    shutil.rmtree(directory)
    directory.write_text("a file where a directory was")
    await store.confirm(CheckpointId(1))
    assert set(store.checkpoints) == {1}


async def test_what_is_pruned_while_it_is_stored_does_not_stay(tmp_path: Path) -> None:
    """The abort came while the disk was busy: afterwards nobody would remove it."""
    store = await open_with(tmp_path)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.store, snapshot(0))
        await anyio.lowlevel.checkpoint()
        tasks.start_soon(store.abort, CheckpointId(0))
    assert kept(store, 0) == []
    assert on_disk(tmp_path) == set()


class StoreMachine(RuleBasedStateMachine):
    """Any order of calls, with restarts in between, against a set of ids."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = TemporaryDirectory()
        self.path = Path(self.directory.name)
        self.store = anyio.run(open_with, self.path)
        self.model: set[int] = set()
        self.lowest = -1

    def teardown(self) -> None:
        self.directory.cleanup()

    @rule(number=st.integers(0, 8))
    def put(self, number: int) -> None:
        anyio.run(self.store.store, snapshot(number))
        if number >= self.lowest and (number in self.model or number >= max(self.model, default=0)):
            self.model.add(number)

    @rule(number=st.integers(0, 9))
    def confirm(self, number: int) -> None:
        anyio.run(self.store.confirm, CheckpointId(number))
        self.lowest = max(self.lowest, number)
        self.model = {each for each in self.model if each >= number}

    @rule(number=st.integers(0, 9))
    def abort(self, number: int) -> None:
        anyio.run(self.store.abort, CheckpointId(number))
        self.model.discard(number)

    @precondition(lambda self: self.model)
    @rule()
    def restart(self) -> None:
        self.store = anyio.run(open_with, self.path)
        self.lowest = -1

    @invariant()
    def it_keeps_what_the_model_keeps(self) -> None:
        assert set(self.store.checkpoints) == self.model
        assert on_disk(self.path) == {f"chk_{number}" for number in self.model}

    @invariant()
    def records_of_what_it_keeps_are_whole(self) -> None:
        assert kept(self.store, *range(10)) == sorted(self.model)


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=15, stateful_step_count=15, deadline=None)
