"""A job on a temporary directory, and what processes leave behind that were really killed."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ownership.disk import Disk

ROOT = Path(__file__).parents[2]
DEATHS = ("before the commit", "in a local write", "in a primary write")


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


@pytest.fixture(scope="session")
def graves(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The directory that each of the killed processes left, one for each way to die. Only to be copied."""
    directories = {death: tmp_path_factory.mktemp("killed") for death in DEATHS}
    command = [sys.executable, "-m", "tests.ownership.killed_child"]
    children = [
        subprocess.Popen([*command, death, str(directory)], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for death, directory in directories.items()
    ]
    for child in children:
        _, errors = child.communicate()
        assert child.returncode < 0, errors
    return directories


@pytest.fixture
def killed(graves: dict[str, Path], disk: Disk) -> Callable[[str], Disk]:
    """The job as a process left it that died like this."""

    def left_by(death: str) -> Disk:
        shutil.copytree(graves[death], disk.directory, dirs_exist_ok=True)
        return disk

    return left_by
