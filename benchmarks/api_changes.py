"""What of the public names would break a caller of the last release: `python -m benchmarks.api_changes`.

What the public rooms export, and its members, is compared with the newest tag of a release behind the commit that is
checked out. A change that breaks a caller fails unless it is allowed and said: within a series (0.3.x, later 1.x) none
is allowed, and in a new one the changelog, or a fragment of it, names each in backquotes. Without a tag or a history
nothing is compared, which is said aloud, with status `NOT_COMPARED`.
"""

import io
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import griffe

ROOT: Final = Path(__file__).parents[1]
PACKAGE: Final = "statebackend"
NOT_PUBLIC: Final = frozenset({"cli", "ids"})
"""Rooms that are not for users, though no underscore says so; what they are handed of `ids`, the front door exports."""
NOT_COMPARED: Final = 3
RELEASE: Final = re.compile(r"v?(\d+(?:\.\d+)+)")
"""Tags of releases. Those of candidates are none: nobody is promised anything by one."""


class NothingToCompareError(Exception):
    """There is no earlier release here, and why not."""


class Break(NamedTuple):
    """A change after which a program that was right may fail."""

    name: str
    """As a caller knows it: `statebackend.Settings.job`."""
    what: str


def last_release(root: Path) -> str:
    """The tag of the newest release behind HEAD. Raises `NothingToCompareError`."""
    if shutil.which("git") is None:
        raise NothingToCompareError("there is no git")
    top = _git(root, "rev-parse", "--show-toplevel").decode().strip()
    if not top or Path(top).resolve() != root.resolve():
        raise NothingToCompareError("there is no history here, as in an unpacked archive")
    tags = _git(root, "tag", "--merged", "HEAD", "--sort=-version:refname").decode().split()
    found = next(filter(RELEASE.fullmatch, tags), None)
    if found is None:
        shallow = _git(root, "rev-parse", "--is-shallow-repository").decode().strip() == "true"
        raise NothingToCompareError(
            "no release is tagged behind HEAD" + (", as far as this shallow clone goes back" if shallow else "")
        )
    return found


def breaks_since(root: Path, tag: str, package: str = PACKAGE) -> list[Break]:
    """Each change of a public name that breaks a caller, in the order of the names."""
    with tempfile.TemporaryDirectory(prefix=f"{package}-{tag}-") as folder:
        archive = _git(root, "archive", "--format=tar", tag, package)
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11 has it from 3.11.4 on
            files.extractall(folder)  # noqa: S202  # it is from our own repository
        old = _loaded(Path(folder), package)
        new = _loaded(root, package)
        was, now = list(_exported(old)), list(_exported(new))
        gone = {name for _, name in was} - {name for _, name in now}
        found = {Break(name, "removed") for name in gone}
        for each in griffe.find_breaking_changes(old, new):
            name = _name_of(each.obj.path, dict([*now, *was]))
            if name is not None and not any(name == other or name.startswith(f"{other}.") for other in gone):
                found.add(Break(name, _explained(each)))
    return sorted(found)


def unsaid(breaks: list[Break], changelog: str) -> list[Break]:
    """Those which no text in backquotes names, by the last part of the name or more of it."""
    quoted = " ".join(re.findall(r"`([^`]+)`", changelog))
    said = {name.removeprefix("sb.") for name in re.findall(r"[\w.]+", quoted)}
    names = {each: each.name.removesuffix(".__init__") for each in breaks}
    return [each for each in breaks if not any(names[each].endswith(f".{part}") for part in said)]


def changelog_since(root: Path, tag: str) -> str:
    """The sections of the changelog above that of the release, and the fragments of the next one."""
    text = (root / "docs" / "CHANGELOG.md").read_text(encoding="utf-8")
    fragments = sorted((root / "docs" / "changes").glob("*.md"))
    newest = re.split(rf"^## {re.escape(tag.removeprefix('v'))}\b", text, maxsplit=1, flags=re.MULTILINE)[0]
    return "\n".join([newest, *(path.read_text(encoding="utf-8") for path in fragments if path.name != "README.md")])


def series(version: str) -> tuple[str, ...]:
    """What stays the same as long as nothing may break: 0.3 of 0.3.1, and 1 of 1.4.2."""
    parts = version.removeprefix("v").split(".")
    return tuple(parts[: 2 if parts[0] == "0" else 1])


def main() -> int:
    """The exit status."""
    try:
        tag = last_release(ROOT)
    except NothingToCompareError as reason:
        print(f"NOT COMPARED: {reason}")
        return NOT_COMPARED
    version = re.findall(r'__version__ = "(.+)"', (ROOT / PACKAGE / "_version.py").read_text(encoding="utf-8"))[0]
    found = breaks_since(ROOT, tag)
    silent = unsaid(found, changelog_since(ROOT, tag))
    for each in found:
        print(f"{each.name}: {each.what}{'. THE CHANGELOG DOES NOT NAME IT' if each in silent else ''}")
    forbidden = bool(found) and series(version) == series(tag)
    if forbidden:
        print(f"{version} is of the series of {tag}, which promises that none of this changes: take another version")
    print(f"compared with {tag}: {len(found)} changes that break a caller, {len(silent)} of them unsaid")
    return int(forbidden or bool(silent))


def _git(root: Path, *arguments: str) -> bytes:
    """What it prints; nothing where it fails."""
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, check=False).stdout  # noqa: S607


def _loaded(folder: Path, package: str) -> griffe.Module:
    loaded = griffe.load(package, search_paths=[folder], allow_inspection=False, try_relative_path=False)
    if not isinstance(loaded, griffe.Module):
        raise TypeError(f"{package} is no package")
    return loaded


def _exported(package: griffe.Module) -> Iterator[tuple[str, str]]:
    """Where each public name is defined, and the name itself; the front door's last, which callers know best."""
    rooms = [each for name, each in package.modules.items() if not name.startswith("_") and name not in NOT_PUBLIC]
    for room in [*rooms, package]:
        defined = [name for name, each in room.members.items() if not each.is_alias]
        for exported in defined if room.exports is None else room.exports:
            name = str(exported)
            if name.startswith("_") or name not in room.members:
                continue
            member = room.members[name]
            if member.is_module:
                continue
            target = member.final_target if isinstance(member, griffe.Alias) else member
            yield target.path, f"{room.path}.{name}"


def _name_of(path: str, public: Mapping[str, str]) -> str | None:
    """The public name of what is defined there; None if it has none, or a part of it has an underscore."""
    head = path
    while head:
        if head in public:
            rest = path[len(head) :]
            hidden = any(part.startswith("_") and part != "__init__" for part in rest.split("."))
            return None if hidden else public[head] + rest
        head = head.rpartition(".")[0]
    return None


def _explained(change: griffe.Breakage) -> str:
    text = re.sub(r"\x1b\[\d+m", "", change.explain(griffe.ExplanationStyle.ONE_LINE))
    return text.partition(": ")[2]  # behind the file


if __name__ == "__main__":
    sys.exit(main())
