"""Changes of public names that break a caller are found, and must be allowed and said."""

import subprocess
from pathlib import Path

import pytest

from benchmarks import api_changes
from benchmarks.api_changes import Break, NothingToCompareError, breaks_since, changelog_since, last_release, unsaid

FRONT = """
from package._inside import count, Options

__all__ = ["Options", "count", "gone"]


def gone() -> None: ...
"""
INSIDE = """
def count(keys: list[str], *, limit: int = 3) -> int: ...


def private(given: int) -> int: ...


class Options:
    def __init__(self, *, size: int = 1) -> None: ...

    def written(self) -> str: ...

    def _hidden(self) -> str: ...
"""


def git(root: Path, *arguments: str) -> None:
    own = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *own, *arguments], cwd=root, check=True, capture_output=True)


def write(root: Path, front: str, inside: str) -> None:
    (root / "package" / "cli").mkdir(parents=True, exist_ok=True)
    (root / "package" / "__init__.py").write_text(front)
    (root / "package" / "_inside.py").write_text(inside)
    (root / "package" / "cli" / "__init__.py").write_text("def main() -> None: ...\n")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A clone with one release."""
    write(tmp_path, FRONT, INSIDE)
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "a release")
    git(tmp_path, "tag", "v0.9.0")
    return tmp_path


def test_what_breaks_a_caller_is_found_by_the_name_that_he_knows(root: Path) -> None:
    """A name that is gone, a required argument, another default, a method that is gone; nothing that is private."""
    changed = INSIDE.replace("limit: int = 3", "limit: int = 4, more: str").replace("size: int", "bytes: int")
    changed = (
        changed.replace("def written", "def _written").replace("given: int", "other: int").replace("_hidden", "_x")
    )
    write(root, FRONT.replace("gone", "come"), changed)
    found = breaks_since(root, "v0.9.0", "package")
    assert sorted({each.name for each in found}) == [
        "package.Options.__init__",
        "package.Options.written",
        "package.count",
        "package.gone",
    ]
    assert {each.what for each in found if each.name == "package.count"} == {
        "count(limit): Parameter default was changed: 3 -> 4",
        "count(more): Parameter was added as required",
    }


def test_what_breaks_nobody_is_not_found(root: Path) -> None:
    """More names, more optional arguments, a body, the private rooms."""
    write(
        root,
        FRONT + "\n\ndef more() -> None: ...\n",
        INSIDE.replace("= 3", "= 3, more: str = ''").replace("given", "x"),
    )
    (root / "package" / "cli" / "__init__.py").unlink()
    assert breaks_since(root, "v0.9.0", "package") == []


def test_the_newest_release_behind_head_is_compared(root: Path) -> None:
    """By number and not by text; neither a candidate nor what lies on another branch."""
    for tag in ("v0.10.0", "v0.11.0rc1", "nightly"):
        git(root, "tag", tag)
    git(root, "checkout", "-b", "other")
    git(root, "commit", "--allow-empty", "-m", "elsewhere")
    git(root, "tag", "v7.0.0")
    git(root, "checkout", "-")
    assert last_release(root) == "v0.10.0"


def test_where_there_is_nothing_to_compare_with_it_says_why(
    root: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No tag, an archive that was unpacked, one within the history of something else, and no git."""
    archive = tmp_path_factory.mktemp("archive")
    with pytest.raises(NothingToCompareError, match="no history"):
        last_release(archive)
    with pytest.raises(NothingToCompareError, match="no history"):
        last_release(root / "package")
    git(root, "tag", "-d", "v0.9.0")
    with pytest.raises(NothingToCompareError, match="no release is tagged behind HEAD"):
        last_release(root)
    monkeypatch.setattr(api_changes, "ROOT", archive)
    assert api_changes.main() == api_changes.NOT_COMPARED
    assert capsys.readouterr().out.startswith("NOT COMPARED: there is no history here")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NothingToCompareError, match="no git"):
        last_release(root)


def test_a_break_is_said_where_its_name_stands_in_backquotes(tmp_path: Path) -> None:
    """In a section above that of the last release, or in a fragment; a word without backquotes names nothing."""
    (tmp_path / "docs" / "changes").mkdir(parents=True)
    (tmp_path / "docs" / "CHANGELOG.md").write_text("## 0.2.0\n\n- `sb.count` is gone\n\n## 0.1.0\n\n- `old`\n")
    (tmp_path / "docs" / "changes" / "x.changed.md").write_text("`Options(size=)` is `bytes`; written changes.\n")
    (tmp_path / "docs" / "changes" / "README.md").write_text("`written`\n")
    names = ["sb.count", "sb.Options.__init__", "sb.Options.written", "sb.old"]
    silent = unsaid([Break(name, "") for name in names], changelog_since(tmp_path, "v0.1.0"))
    assert [each.name for each in silent] == ["sb.Options.written", "sb.old"]


def test_a_series_is_what_promises_to_stay() -> None:
    """While the version begins with 0, each minor release begins another."""
    assert api_changes.series("v0.3.1") == api_changes.series("0.3.9") != api_changes.series("0.4.0")
    assert api_changes.series("1.4.2") == api_changes.series("v1.9.0") != api_changes.series("2.0.0")
