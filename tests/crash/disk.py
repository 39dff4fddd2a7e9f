"""A disk that forgets what was not synced: file operations are recorded, and what a power cut may leave is built.

    record := [event]      in the order in which the operations took effect
    event  := Entries(directory, {name: node or None}) | Content(file, bytes) | Synced(node) | Mark(anything)

Only fsync makes anything last: that of a file its content, that of a directory its names. Until then each change of a
directory has happened or not, whatever became of those before it; a rename within a directory is one change. A file
that was not synced since it was written has its old content, its new content, a part of that, or zeros in its place.
"""

import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.faults.file_calls import Call


@dataclass(eq=False)
class File:
    """`first`: its content when the record begins, synced or not. `written`: the contents since the last sync."""

    first: bytes = b""
    is_synced: bool = True
    synced: bytes = field(init=False)
    written: list[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """As it was when the record began."""
        self.synced = self.first if self.is_synced else b""
        self.written = [] if self.is_synced else [self.first]

    @property
    def content(self) -> bytes:
        """As a process sees it."""
        return self.written[-1] if self.written else self.synced

    @property
    def variants(self) -> Sequence[bytes]:
        """Every content that it may have after a cut."""
        if not self.written:
            return [self.synced]
        last = self.content
        torn = [last[: len(last) // 2], b"", self.synced[: len(last)].ljust(len(last), b"\0")]
        return list(dict.fromkeys([self.synced, *self.written, *torn]))


@dataclass(eq=False)
class Directory:
    """`first`: its names when the record begins. `changed`: what was done to them since the last sync, in order."""

    first: Mapping[str, "Node"] = field(default_factory=dict[str, "Node"])
    synced: Mapping[str, "Node"] = field(init=False)
    changed: list["Names"] = field(init=False)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """As it was when the record began."""
        self.synced, self.changed = self.first, []

    @property
    def names(self) -> Mapping[str, "Node"]:
        """As a process sees them."""
        return self.after(self.changed)

    def after(self, changes: Sequence["Names"]) -> Mapping[str, "Node"]:
        """The names if these of the changes have happened."""
        names: dict[str, Node | None] = dict(self.synced)
        for change in changes:
            names |= change
        return {name: node for name, node in names.items() if node is not None}


Node = File | Directory
Names = Mapping[str, Node | None]
"""A change of a directory; `None`: the name is removed."""


@dataclass(frozen=True)
class Entries:
    directory: Directory
    names: Names

    def happen(self) -> None:
        self.directory.changed.append(self.names)


@dataclass(frozen=True)
class Content:
    file: File
    content: bytes

    def happen(self) -> None:
        self.file.written.append(self.content)


@dataclass(frozen=True)
class Synced:
    node: Node

    def happen(self) -> None:
        if isinstance(self.node, File):
            self.node.synced = self.node.content
            self.node.written.clear()
        else:
            self.node.synced = self.node.names
            self.node.changed.clear()


@dataclass(frozen=True)
class Mark:
    """What a process had said by then."""

    said: Any

    def happen(self) -> None:
        """Nothing, on the disk."""


Event = Entries | Content | Synced | Mark
Outcome = Mapping[str, bytes | None]
"""What lies on the disk: the content of each file by its path, `None` for a directory."""


Forgets = Callable[[Node, str], bool]
"""Whether a sync of this node, by its path on the disk, does nothing."""


def never(_node: Node, _path: str) -> bool:
    """A disk that keeps what it is told to."""
    return False


class Recorder:
    """The watcher of a directory's file calls, which makes and records them. `forgets`: syncs that do nothing."""

    def __init__(self, root: Path, forgets: Forgets = never) -> None:
        self.events: list[Event] = []
        self.tree = _as_it_is(root)
        self._root = f"{root}"
        self._forgets = forgets
        self._turn = threading.Lock()

    def mark(self, said: Any) -> None:
        """The process has said this by now."""
        with self._turn:
            self.events.append(Mark(said))

    def replay(self) -> Iterator[Event]:
        """After the record is complete: the disk as it was at first, and after each event, which is yielded."""
        nodes = {id(node): node for event in self.events for node in _nodes_of(event)}
        for node in [*nodes.values(), *_inside(self.tree)]:
            node.reset()
        for event in self.events:
            event.happen()
            yield event

    def __call__(self, call: Call, really: Callable[[], Any]) -> Any:
        if not (call.changes or call.name in ("fsync", "fdatasync")):
            return really()
        with self._turn:
            is_new = call.name == "create" and not os.path.lexists(call.path)
            node = self._find(call.path)
            result = really()
            for event in self._events_of(call, node, is_new=is_new):
                event.happen()
                self.events.append(event)
            return result

    def _events_of(self, call: Call, node: Node | None, *, is_new: bool) -> Iterator[Event]:
        if call.name in ("fsync", "fdatasync"):
            if node is not None and not self._forgets(node, call.path.removeprefix(self._root)):
                yield Synced(node)
        elif call.name in ("write", "writev", "sendfile"):
            if isinstance(node, File):
                yield Content(node, _read(f"/proc/self/fd/{call.descriptor}"))
        elif call.name == "create" and not is_new:
            if isinstance(node, File) and (content := _read(call.path)) != node.content:
                yield Content(node, content)
        elif call.target is not None:
            moved = node or File(_read(call.target), is_synced=False)  # made by native code, which syncs nothing
            yield from self._renamed(({} if call.name == "link" else {call.path: None}) | {call.target: moved})
        elif call.name in ("create", "mkdir"):
            yield from self._renamed({call.path: File() if call.name == "create" else Directory()})
        elif node is not None:
            yield from self._renamed({call.path: None})

    def _renamed(self, names: Names) -> Iterator[Event]:
        """One change for each directory. Directories made by native code are of no consequence."""
        changes: dict[str, dict[str, Node | None]] = {}
        for path, node in names.items():
            outer, _, name = path.rpartition("/")
            changes.setdefault(outer, {})[name] = node
        for outer, changed in changes.items():
            directory = self._find(outer)
            if isinstance(directory, Directory):
                yield Entries(directory, changed)

    def _find(self, path: str) -> Node | None:
        node: Node | None = self.tree
        for name in filter(None, path.removeprefix(self._root).split("/")):
            node = node.names.get(name) if isinstance(node, Directory) else None
        return node


def _nodes_of(event: Event) -> Iterator[Node]:
    if isinstance(event, Entries):
        yield event.directory
        yield from (node for node in event.names.values() if node is not None)
    elif isinstance(event, Content):
        yield event.file
    elif isinstance(event, Synced):
        yield event.node


def _inside(node: Node) -> Iterator[Node]:
    yield node
    if isinstance(node, Directory):
        for inner in node.first.values():
            yield from _inside(inner)


def outcomes(tree: Directory, *, chance: Random, most: int) -> Iterator[Outcome]:
    """What a cut may leave of `tree`: everything, where that is at most `most`, or else so many drawn."""
    everything = list(itertools.islice(_all_outcomes(tree), most + 1))
    yield from everything if len(everything) <= most else (_left(tree, chance.randrange) for _ in range(most))


def _all_outcomes(tree: Directory) -> Iterator[Outcome]:
    """One for each sequence of choices, in their order."""
    fixed: list[int] = []
    while True:
        made: list[tuple[int, int]] = []  # chosen, of how many

        def choose(count: int, fixed: Sequence[int] = fixed, made: list[tuple[int, int]] = made) -> int:
            made.append((fixed[len(made)] if len(made) < len(fixed) else 0, count))
            return made[-1][0]

        yield _left(tree, choose)
        while made and made[-1][0] == made[-1][1] - 1:
            made.pop()
        if not made:
            return
        fixed = [chosen for chosen, _ in made]
        fixed[-1] += 1


def _left(tree: Directory, choose: Callable[[int], int]) -> Outcome:
    left: dict[str, bytes | None] = {}

    def leave(path: str, node: Node) -> None:
        if isinstance(node, File):
            variants = node.variants
            left[path] = variants[choose(len(variants))] if len(variants) > 1 else variants[0]
            return
        left[path] = None
        kept = [change for change in node.changed if choose(2)]
        for name, inner in sorted(node.after(kept).items()):
            leave(f"{path}/{name}" if path else name, inner)

    leave("", tree)
    return left


def lay_down(outcome: Outcome, root: Path, *, age_s: float = 0.0) -> None:
    """Make these files below `root`, last changed so long ago."""
    for path, content in outcome.items():
        if content is None:
            (root / path).mkdir(mode=0o700, exist_ok=True)
        else:
            (root / path).write_bytes(content)
            status = (root / path).stat()
            os.utime(root / path, (status.st_atime, status.st_mtime - age_s))


def _as_it_is(path: Path) -> Directory:
    inner: Iterator[tuple[str, Node]] = (
        (each.name, _as_it_is(each) if each.is_dir() else File(each.read_bytes())) for each in path.iterdir()
    )
    return Directory(dict(inner))


def _read(path: str) -> bytes:
    with suppress(FileNotFoundError), open(path, "rb") as file:  # noqa: PTH123  # as a watched call has it
        return file.read()
    return b""
