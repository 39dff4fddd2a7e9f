"""Debian's packages are fetched where the machine's lists of them are old, or missing: here by an apt that says so."""

from pathlib import Path

import pytest

from benchmarks.debian import unpack
from benchmarks.servers import ServerError

APT = """#!/bin/sh
echo "$*" >> "$0.said"
case "$*" in
    *"Lists="*update) ;;
    *"Lists="*install*) echo "Inst spin (6.5 Debian)" ;;
    *"Lists="*download*) : > spin.deb ;;
    *) echo "E: Unable to locate package" >&2; exit 100 ;;
esac
"""
DPKG = """#!/bin/sh
mkdir -p "$3/usr/bin" && : > "$3/usr/bin/spin"
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An apt-get that finds a package in lists of one's own alone, and a dpkg."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in {"apt-get": APT, "dpkg": DPKG}.items():
        (folder / name).write_text(text, encoding="ascii")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def test_lists_are_fetched_where_the_machine_has_none(programs: Path, tmp_path: Path) -> None:
    """Into the folder. What is unpacked is not asked for again."""
    for _ in range(2):
        unpack(tmp_path / "spin", "spin")
    assert (tmp_path / "spin" / "usr" / "bin" / "spin").exists()
    assert [line.split()[-1] for line in (programs / "apt-get.said").read_text().splitlines()] == [
        "spin",
        "update",
        "spin",
        "spin",
    ]


def test_a_package_that_does_not_come_is_told(programs: Path, tmp_path: Path) -> None:
    """With what apt says, and it is tried again the next time."""
    (programs / "apt-get").write_text(APT.replace("Lists=", "Nothing="), encoding="ascii")
    with pytest.raises(ServerError, match="Unable to locate"):
        unpack(tmp_path / "spin", "spin")
    assert not (tmp_path / "spin" / "unpacked").exists()


def test_what_is_installed_is_not_fetched(programs: Path, tmp_path: Path) -> None:
    """Then the plan is empty, and apt fails if it is to download nothing."""
    (programs / "apt-get").write_text('#!/bin/sh\ncase "$*" in *download*) exit 100 ;; esac\n', encoding="ascii")
    unpack(tmp_path / "spin", "spin")
    assert not list((tmp_path / "spin" / "packages").iterdir())
