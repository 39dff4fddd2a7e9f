"""One live backend may write in a local root; when it has died, the next one may."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from statebackend._local import job_directories
from statebackend._local.job_directories import has_copies, lock_root, open_local_directories
from statebackend._local.locks import FileLock
from statebackend.errors import LocalRootError
from tests.at_work import plenty

OWNER = """
import os, subprocess, sys
from statebackend._local.job_directories import lock_root

directory = lock_root(sys.argv[1], "job")
if sys.argv[2] == "alone":
    print(directory.owned, flush=True)
elif sys.argv[2] == "starting":
    program = "import os; print(os.getpid(), flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", program], close_fds=False)
elif os.fork() == 0:
    print(os.getpid(), flush=True)
sys.stdin.read()
"""


@contextmanager
def owner_process(root: Path, mode: str = "alone") -> Generator[tuple["subprocess.Popen[str]", str]]:
    """Another process that claims `root`, says what came of it, and keeps it until it is killed."""
    child = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(root), mode], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        try:
            yield child, child.stdout.readline().strip()
        finally:
            child.kill()


def test_claiming_makes_the_directories_for_the_owner_only(tmp_path: Path) -> None:
    """Root, job and copies, mode 0700 whatever the umask: state may be private."""
    former = os.umask(0)
    try:
        directory = lock_root(tmp_path / "new" / "root", "fleet")
    finally:
        os.umask(former)
    assert directory.owned
    assert directory.root == tmp_path / "new" / "root"
    assert directory.segments == tmp_path / "new" / "root" / "job_fleet" / "taskowned"
    for path in (directory.root, directory.segments.parent, directory.segments):
        assert path.stat().st_mode & 0o777 == 0o700
    directory.close()


def test_a_second_claim_in_the_same_process_may_only_read(tmp_path: Path) -> None:
    """Two backends in one process are two owners, and the first one wins until it closes."""
    first, second = lock_root(tmp_path, "job"), lock_root(tmp_path, "job")
    assert (first.owned, second.owned) == (True, False)
    second.close()
    third = lock_root(tmp_path, "job")
    assert not third.owned
    third.close()
    first.close()
    first.close()
    fourth = lock_root(tmp_path, "job")
    assert fourth.owned
    fourth.close()


def test_jobs_do_not_get_into_each_others_way(tmp_path: Path) -> None:
    """The lock belongs to the job's directory, not to the root."""
    one, two = lock_root(tmp_path, "one"), lock_root(tmp_path, "two")
    assert (one.owned, two.owned) == (True, True)
    one.close()
    two.close()


def test_the_lock_dies_with_a_killed_process(tmp_path: Path) -> None:
    """No stale lock to break by hand: the kernel releases it, also after SIGKILL."""
    with owner_process(tmp_path) as (child, owned):
        assert owned == "True"
        ours = lock_root(tmp_path, "job")
        assert not ours.owned
        ours.close()
        child.send_signal(signal.SIGKILL)
        child.wait()
        ours = lock_root(tmp_path, "job")
        assert ours.owned
        ours.close()


@pytest.mark.parametrize("mode", ["forking", "starting"])
def test_a_child_process_does_not_keep_its_dead_parents_lock(mode: str, tmp_path: Path) -> None:
    """A pool of forked workers, or a Java virtual machine, may outlive us; restarted, we still get our local copy."""
    with owner_process(tmp_path, mode) as (parent, line):
        child = int(line)
        try:
            other = lock_root(tmp_path, "job")
            assert not other.owned
            other.close()
            parent.send_signal(signal.SIGKILL)
            parent.wait()
            os.kill(child, 0)
            ours = lock_root(tmp_path, "job")
            assert ours.owned
            ours.close()
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_forked_childs_end_does_not_free_the_lock_of_its_parent(tmp_path: Path) -> None:
    """The child closes only its copy of the lock; neither its fork nor its end unlocks."""
    with owner_process(tmp_path, "forking") as (_, line):
        for _ in range(2):
            ours = lock_root(tmp_path, "job")
            assert not ours.owned
            ours.close()
            os.kill(int(line), signal.SIGKILL)


BAD_ROOTS = {
    "relative": "relative/path",
    "a file": "{tmp_path}/file",
    "below a file": "{tmp_path}/file/root",
    "a file where the copies should be": "{tmp_path}/taken",
    "a directory where the lock should be": "{tmp_path}/locked",
    "not a path": "/null\0byte",
    "refused by the system": "/proc/statebackend",
}


@pytest.mark.parametrize("case", BAD_ROOTS)
def test_a_root_that_cannot_be_used_is_named_with_the_reason(case: str, tmp_path: Path) -> None:
    """The error tells which path and why; what lies there is left alone."""
    (tmp_path / "file").write_bytes(b"somebody's")
    (tmp_path / "taken" / "job_job").mkdir(parents=True)
    (tmp_path / "taken" / "job_job" / "taskowned").write_bytes(b"somebody's")
    (tmp_path / "locked" / "job_job" / "lock").mkdir(parents=True)
    root = BAD_ROOTS[case].format(tmp_path=tmp_path)
    with pytest.raises(LocalRootError) as caught:
        lock_root(root, "job")
    assert caught.value.facts["root"] == root
    if case != "relative":
        assert caught.value.facts["reason"]
    assert (tmp_path / "file").read_bytes() == (tmp_path / "taken/job_job/taskowned").read_bytes() == b"somebody's"
    assert not Path("relative").exists()


UNPRIVILEGED = """
import os, sys
from statebackend._local.job_directories import lock_root
from statebackend.errors import LocalRootError

if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    lock_root(sys.argv[1], "job")
except LocalRootError as error:
    print(error.facts["root"], error.facts["reason"])
"""


@pytest.mark.parametrize("refused", ["", "job_job", "job_job/taskowned"])
@pytest.mark.parametrize("mode", [0o500, 0o000])
def test_a_root_without_permission_is_refused(mode: int, refused: str) -> None:
    """Unwritable, or unreadable: said at once, and not when the first copy is due. (Root may do all: it steps down.)"""
    with tempfile.TemporaryDirectory() as parent:
        root = Path(parent) / "root"
        for path in (root / "job_job/taskowned", root / "job_job", root, Path(parent)):
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o777)
        (root / refused).chmod(mode)
        result = subprocess.run(
            [sys.executable, "-c", UNPRIVILEGED, str(root)], capture_output=True, text=True, check=False
        )
        (root / refused).chmod(0o700)
    assert result.stdout == f"{root} Permission denied\n", result.stderr


async def test_all_roots_are_claimed_for_as_long_as_the_context_lasts(tmp_path: Path) -> None:
    """In the order given; afterwards the next backend can own them."""
    roots = [tmp_path / "one", tmp_path / "two"]
    async with open_local_directories(roots, "job", plenty(*roots)) as directories:
        assert [directory.root for directory in directories] == roots
        assert [directory is not None and directory.owned for directory in directories] == [True, True]
        async with open_local_directories(roots, "job", plenty(*roots)) as others:
            assert [directory.owned for directory in others] == [False, False]
    async with open_local_directories(roots, "job", plenty(*roots)) as directories:
        assert all(directory.owned for directory in directories)


async def test_no_roots_are_no_directories() -> None:
    """Without a local copy nothing is made and nothing is locked."""
    async with open_local_directories([], "job", plenty()) as directories:
        assert directories == ()


async def test_when_one_root_fails_the_others_are_let_go(tmp_path: Path) -> None:
    """An open that failed holds no lock."""
    (tmp_path / "file").write_bytes(b"")
    roots = [tmp_path / "good", tmp_path / "file"]
    with pytest.raises(LocalRootError):
        async with open_local_directories(roots, "job", plenty(*roots)):
            pass
    directory = lock_root(tmp_path / "good", "job")
    assert directory.owned
    directory.close()


async def test_an_error_in_the_context_lets_go_of_the_lock(tmp_path: Path) -> None:
    """A backend that failed does not stand in the way of the one that is opened next."""
    with pytest.raises(ZeroDivisionError):
        async with open_local_directories([tmp_path], "job", plenty(tmp_path)):
            raise ZeroDivisionError
    directory = lock_root(tmp_path, "job")
    assert directory.owned
    directory.close()


async def test_a_claim_that_hangs_is_given_up_and_holds_nothing_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk comes back long after the root was given up: the lock that the thread gets then is released at once."""
    may_end, locked, really_lock = threading.Event(), list[bool](), job_directories.lock_file

    def hang(path: Path, *, shared: bool) -> FileLock:
        may_end.wait()
        lock = really_lock(path, shared=shared)
        locked.append(lock.held)
        return lock

    monkeypatch.setattr(job_directories, "lock_file", hang)
    threads = set(threading.enumerate())
    try:
        async with open_local_directories([tmp_path], "job", plenty(tmp_path), timeout_s=0.05) as directories:
            assert directories == (None,)
    finally:
        may_end.set()
    for thread in set(threading.enumerate()) - threads:
        await anyio.to_thread.run_sync(thread.join, 20.0)
    assert locked == [True]
    monkeypatch.undo()
    directory = lock_root(tmp_path, "job")
    assert directory.owned
    directory.close()


@pytest.mark.parametrize(
    ("name", "is_copy"),
    [
        ("taskowned/segment", True),
        ("taskowned/commits/0001", True),
        ("op_main_kg_0_127/chk_7/snapshot", True),
        ("op_main_kg_0_127/chk_7/000012.sst", True),
        ("lock", False),
        ("kg_0_127/files/000012.sst", False),
        ("notes/segment", False),
    ],
)
def test_a_root_has_copies_if_a_file_lies_where_copies_do(tmp_path: Path, name: str, *, is_copy: bool) -> None:
    """Of segments, of commits, or of RocksDB's files. Directories alone are none, nor is another job's copy."""
    path = tmp_path / "job_fleet" / name
    assert not has_copies(tmp_path, "fleet")
    path.parent.mkdir(parents=True, exist_ok=True)
    assert not has_copies(tmp_path, "fleet")
    path.touch()
    assert has_copies(tmp_path, "fleet") == is_copy
    assert not has_copies(tmp_path, "flee")
