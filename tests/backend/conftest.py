"""A job on a temporary directory, both copies, and pictures of what lies on the disk."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from statebackend import Settings
from tests.knobs import replaced, settings_with

Tree = Mapping[str, bytes]


class Leg(msgspec.Struct):
    origin: str
    dest: str
    flown: int = 0


def tree_of(root: Path) -> Tree:
    """Every file under `root` with its content."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def data_of(root: Path) -> Tree:
    """As `tree_of`, without the log and its hint, to which opening adds a claim."""
    return {
        name: content
        for name, content in tree_of(root).items()
        if not name.endswith("/newest") and "commits" not in Path(name).parts
    }


def local_segments(root: Path, job: str = "fleet") -> list[Path]:
    """The local copies of segments, oldest first; of the same tick of the clock, by their names, which grow as well."""
    paths = (root / f"job_{job}" / "taskowned" / "segments").iterdir()
    return sorted(paths, key=lambda path: (path.stat().st_mtime_ns, path.name))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A job with a file primary and one local root, without the persist delay, whose changes travel in segments.

    It does not wait for a primary that is away.
    """
    return settings_with(
        job="fleet",
        primary=f"file://{tmp_path}/primary",
        local=(f"{tmp_path}/local",),
        persist_delay_s=0.0,
        inline_bytes_max=0,
        upload__primary_outage_s=0.0,
        upload__timeout_s=0.0,  # a slow machine must cost neither another attempt nor a local copy
        secondary_grace_s=60.0,
    )


@pytest.fixture
def with_settings(settings: Settings) -> Callable[..., Settings]:
    """The same job with some settings changed."""

    def changed(**changes: Any) -> Settings:
        return replaced(settings, **changes)

    return changed
