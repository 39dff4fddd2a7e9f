"""Lists the files below a directory in the order of their keys, in bounded memory, however many there are.

The order of a directory is not that of its names, so they have to be sorted: the first `NAMES_MAX` of them at a time,
each time from all that are there. What comes and goes meanwhile may be listed or not.
"""

import itertools
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from statebackend.abc import ObjectInfo
from statebackend.objectstore.memory import is_temporary

NAMES_MAX: Final = 100_000
"""Names of a directory that are sorted at a time; twice as many are in memory. A log of a day has fewer."""
PAGE: Final = 1000
"""Objects that one hop to a thread lists."""


def walk(root: Path, prefix: str) -> Iterator[ObjectInfo]:
    """Iterate over the objects under `prefix`, in the order of their keys. Blocks on the disk: for worker threads."""
    base, slash, _ = prefix.rpartition("/")
    if slash and any(part in ("", ".", "..") for part in base.split("/")):
        return iter(())  # no key starts like this, and the walk would leave the root
    return _walk(root, base + slash, prefix)


def next_page(found: Iterator[ObjectInfo]) -> Sequence[ObjectInfo]:
    """Return the next `PAGE` objects; fewer if there are no more."""
    return list(itertools.islice(found, PAGE))


def _walk(root: Path, path: str, prefix: str) -> Iterator[ObjectInfo]:
    """The objects in the directory `path`, which is empty or ends in '/', and below."""
    for name in _names(f"{root}/{path}", prefix[len(path) :]):
        if name.endswith("/"):
            yield from _walk(root, path + name, prefix[: len(path + name)])
            continue
        with suppress(FileNotFoundError):  # deleted in the meantime
            if stat.S_ISREG((status := os.stat(f"{root}/{path}{name}")).st_mode):  # and not a link to a directory
                yield info_of(path + name, status)


def _names(directory: str, beginning: str) -> Iterator[str]:
    """The names in a directory that begin so, in the order of keys: those of directories with a '/' behind."""
    after, more = "", True
    while more:
        try:
            found, more = _names_after(directory, beginning, after)
        except (FileNotFoundError, NotADirectoryError):
            return
        yield from found
        after = found[-1] if found else after


def _names_after(directory: str, beginning: str, after: str) -> tuple[Sequence[str], bool]:
    """The first `NAMES_MAX` of these names, and whether there are more."""
    found, more = list[str](), False
    with os.scandir(directory) as entries:
        for entry in entries:
            name = f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name
            if name > after and name.startswith(beginning) and not is_temporary(entry.name):
                found.append(name)
            if len(found) == 2 * NAMES_MAX:
                found.sort()
                del found[NAMES_MAX:]
                more = True
    return sorted(found)[:NAMES_MAX], more or len(found) > NAMES_MAX


def info_of(key: str, status: os.stat_result) -> ObjectInfo:
    """The object in a file with that status."""
    return ObjectInfo(key=key, size_bytes=status.st_size, modified_s=status.st_mtime)
