"""Two real processes drive one job over files: the one that opened last commits, the other is fenced."""

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import statebackend as sb
from tests.backend.conftest import tree_of
from tests.backend.driver_child import settings_in

ROOT = Path(__file__).parents[2]


class Child:
    """A driver in a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def hear(self) -> str:
        """The next thing it says."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def send(self) -> None:
        """Have it commit a batch."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()


@contextmanager
def driver(directory: Path, name: str) -> Generator[Child]:
    command = [sys.executable, "-m", "tests.backend.driver_child", str(directory), name]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=ROOT, text=True, env=environ) as process:
        try:
            yield Child(process)
        finally:
            process.communicate()
    assert process.returncode == 0


async def by_whom(directory: Path) -> dict[sb.Key, str]:
    async with sb.open_backend(settings_in(directory), read_only=True) as backend:
        return dict(backend.value_state("by", str))


async def test_the_older_driver_is_fenced_at_its_next_commit_and_deletes_nothing(tmp_path: Path) -> None:
    """Before the newer one has committed anything; and that one goes on."""
    with driver(tmp_path, "older") as older:
        assert older.hear() == "opened 1"
        older.send()
        assert older.hear() == "committed 1"
        with driver(tmp_path, "newer") as newer:
            assert newer.hear() == "opened 2"
            before = tree_of(tmp_path)
            older.send()
            assert older.hear() == "fenced"
            after = tree_of(tmp_path)
            assert {name: after.get(name) for name in before} == before
            newer.send()
            assert newer.hear() == "committed 3"
    assert await by_whom(tmp_path) == {0: "older", 1: "newer"}


async def test_of_drivers_that_start_at_once_exactly_one_commits(tmp_path: Path) -> None:
    """Whichever it is, by chance: the others are fenced, and its commits are those of the job."""
    with driver(tmp_path, "0") as first, driver(tmp_path, "1") as second, driver(tmp_path, "2") as third:
        drivers = [first, second, third]
        epochs = [each.hear() for each in drivers]
        assert sorted(epochs) == ["opened 1", "opened 2", "opened 3"]
        for each in drivers:
            each.send()
        said = [each.hear() for each in drivers]
        winner = epochs.index("opened 3")
        assert said == ["committed 3" if number == winner else "fenced" for number in range(3)]
    assert await by_whom(tmp_path) == {0: str(winner)}
