"""Paths of an owner's local snapshots: roots in turn, one directory for each owner and each checkpoint.

The original's subtask is an owner of key groups of an operator here, its allocation directory a root.
"""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend._local.layout import LocalLayout, checkpoint_of, job_directory, owner_of, segments_directory
from statebackend.errors import LocalRootError, SettingsError
from statebackend.ids import CheckpointId, KeyGroupRange

ROOTS = (Path("/a"), Path("/b/c"), Path("/d"))
IDS = [CheckpointId(number) for number in range(10)]


@pytest.fixture
def layout() -> LocalLayout:
    return LocalLayout(ROOTS, "fleet", "legs", KeyGroupRange(0, 63))


def test_checkpoints_take_the_roots_in_turn(layout: LocalLayout) -> None:
    """Row: LocalSnapshotDirectoryProviderImplTest.allocationBaseDir."""
    assert [layout.root_of(each) for each in IDS] == [ROOTS[each % 3] for each in IDS]


def test_roots_keep_the_order_in_which_they_are_given(layout: LocalLayout) -> None:
    """Rows: LocalSnapshotDirectoryProviderImplTest.selectAllocationBaseDir, .allocationBaseDirectoriesCount, and
    TaskLocalStateStoreImplTest.getLocalRecoveryRootDirectoryProvider: LocalSnapshotDirectoryProviderImplTest's roots
    are what a store exposes.
    """
    assert len(layout.owner_directories) == len(ROOTS)
    for index, root in enumerate(ROOTS):
        assert layout.roots[index] == root
        assert layout.owner_directories[index].is_relative_to(root)


def test_an_owner_has_a_directory_of_its_own_in_each_root(layout: LocalLayout) -> None:
    """Row: LocalSnapshotDirectoryProviderImplTest.subtaskSpecificDirectory."""
    for each in IDS:
        assert layout.owner_directory(each) == layout.root_of(each) / "job_fleet" / "op_legs_kg_0_63"


def test_a_checkpoint_has_a_directory_of_its_own(layout: LocalLayout) -> None:
    """Row: LocalSnapshotDirectoryProviderImplTest.subtaskCheckpointSpecificDirectory."""
    for each in IDS:
        assert layout.checkpoint_directory(each) == layout.owner_directory(each) / f"chk_{each}"


def test_names_on_the_disk_are_what_they_are() -> None:
    """Row: LocalSnapshotDirectoryProviderImplTest.testPathStringConstants. The next release looks there."""
    layout = LocalLayout((Path("/r"),), "job.1", "op-1", KeyGroupRange(32, 47))
    assert layout.checkpoint_directory(CheckpointId(42)) == Path("/r/job_job.1/op_op-1_kg_32_47/chk_42")
    assert job_directory(Path("/r"), "job.1") == Path("/r/job_job.1")
    assert segments_directory(Path("/r"), "job.1") == Path("/r/job_job.1/taskowned")


@pytest.mark.parametrize("roots", [(), (None,), (Path("/a"), None), (Path("relative"),), ("/a",)])
def test_a_root_that_is_none_is_refused(roots: tuple[Path, ...]) -> None:
    """Row: LocalSnapshotDirectoryProviderImplTest.testPreconditionsNotNullFiles. At once."""
    with pytest.raises(LocalRootError):
        LocalLayout(roots, "fleet", "legs", KeyGroupRange(0, 63))


@pytest.mark.parametrize("name", ["", "..", "a/b", "a\0", "x" * 101, " "])
def test_a_name_that_is_no_directory_is_refused(name: str) -> None:
    """It would lie where nobody prunes, or over what is somebody else's."""
    for job, operator in ((name, "legs"), ("fleet", name)):
        with pytest.raises(SettingsError):
            LocalLayout(ROOTS, job, operator, KeyGroupRange(0, 63))


@pytest.mark.parametrize("name", ["x", "x" * 100, "0.a_b-c"])
def test_a_name_of_a_directory_is_taken(name: str) -> None:
    """As long as the settings take one for a job."""
    assert LocalLayout(ROOTS, name, name, KeyGroupRange(0, 63)).owner_directories[0].name == f"op_{name}_kg_0_63"


@given(st.integers(0, 2**63).map(CheckpointId))
def test_a_checkpoint_is_found_by_the_name_of_its_directory(checkpoint_id: CheckpointId) -> None:
    """So that what an earlier process left is known again."""
    layout = LocalLayout(ROOTS, "fleet", "legs", KeyGroupRange(0, 63))
    assert checkpoint_of(layout.checkpoint_directory(checkpoint_id).name) == checkpoint_id


@pytest.mark.parametrize("name", ["chk_", "chk_-1", "chk_01", "chk_1x", "xchk_1", "chk_1.tmp", "taskowned", "chk_²"])
def test_other_names_are_no_checkpoint(name: str) -> None:
    """They are left alone: somebody else's, or a later release's."""
    assert checkpoint_of(name) is None


def test_an_owner_is_found_by_the_name_of_its_directory(layout: LocalLayout) -> None:
    """Pruning knows by it which owner the directory belongs to."""
    assert owner_of(layout.owner_directories[0].name) == ("legs", KeyGroupRange(0, 63))
    assert owner_of("op_a_kg_1_kg_2_3") == ("a_kg_1", KeyGroupRange(2, 3))
    assert owner_of("op_legs_kg_3_3") == ("legs", KeyGroupRange(3, 3))


@pytest.mark.parametrize(
    "name", ["", "taskowned", "op_legs_kg_0", "op_legs_kg_3_2", "op__kg_0_1", "op_legs_kg_00_1", "op_legs_kg_0_1x"]
)
def test_other_names_are_no_owner(name: str) -> None:
    """They are left alone."""
    assert owner_of(name) is None
