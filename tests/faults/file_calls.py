"""A shim under the file calls of Python: each that touches a directory or a path below it passes by a watcher.

    with watched(directory, watcher): ...

Everything that the library does with files passes by: its own calls of `os`, and those that `pathlib` and `shutil`
make for it. RocksDB's own files are written by native code, which nobody here can see.
"""

import builtins
import fcntl
import io
import os
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch


@dataclass(frozen=True)
class Call:
    """A call of this name on `path`. `changes`: it writes. `target`: the second path, of a link or a rename."""

    name: str
    path: str
    changes: bool
    target: str | None = None
    descriptor: int | None = None


Watcher = Callable[[Call, Callable[[], Any]], Any]
"""Gets the call, and what really makes it; returns its result, or raises."""

READS: Final = ("stat", "lstat", "scandir", "listdir", "statvfs", "access")
CHANGES: Final = ("unlink", "remove", "mkdir", "rmdir", "truncate")
MOVES: Final = ("replace", "rename", "link")
ON_OPEN_FILES: Final = ("fsync", "fdatasync", "write", "writev", "sendfile")


def path_of(place: Any, dir_fd: int | None = None) -> str:
    """The path of a name, of an open file, or of a name in an open directory; "" if it is nothing of the kind."""
    if isinstance(place, int):
        try:
            return os.readlink(f"/proc/self/fd/{place}").removesuffix(" (deleted)")  # noqa: PTH115  # as os.* below
        except OSError:
            return ""
    try:
        name = os.fsdecode(place)
    except TypeError:
        return ""
    return name if dir_fd is None else f"{path_of(dir_fd)}/{name}"


class _Shim:
    def __init__(self, root: Path, watcher: Watcher) -> None:
        self._below = f"{root}/"
        self._watcher = watcher
        self._local = threading.local()

    def pass_by(self, call: Call, really: Callable[[], Any]) -> Any:
        if not f"{call.path}/".startswith(self._below) or getattr(self._local, "inside", False):
            return really()
        self._local.inside = True  # what the watcher does is its own affair
        try:
            return self._watcher(call, really)
        finally:
            self._local.inside = False

    def on_path(self, name: str, really: Any, *, changes: bool) -> Any:
        def call(path: Any = ".", *args: Any, **named: Any) -> Any:
            found = Call(name, path_of(path, named.get("dir_fd")), changes)
            return self.pass_by(found, lambda: really(path, *args, **named))

        return call

    def moving(self, name: str, really: Any) -> Any:
        def call(source: Any, target: Any, **named: Any) -> Any:
            found = Call(name, path_of(source), True, path_of(target))
            return self.pass_by(found, lambda: really(source, target, **named))

        return call

    def on_open_file(self, name: str, really: Any) -> Any:
        def call(file: Any, *args: Any) -> Any:
            descriptor = file if isinstance(file, int) else file.fileno()
            found = Call(name, path_of(descriptor), name != "flock", descriptor=descriptor)
            return self.pass_by(found, lambda: really(file, *args))

        return call

    def opening(self, really: Any) -> Any:
        def call(path: Any, flags: int, *args: Any, **named: Any) -> Any:
            changes = bool(flags & (os.O_CREAT | os.O_TRUNC))
            found = Call("create" if changes else "open", path_of(path, named.get("dir_fd")), changes)
            return self.pass_by(found, lambda: really(path, flags, *args, **named))

        return call

    def opening_files(self, really: Any) -> Any:
        def call(file: Any, mode: str = "r", buffering: int = -1, *args: Any, **named: Any) -> Any:
            path = "" if isinstance(file, int) else path_of(file)
            if not path.startswith(self._below) or getattr(self._local, "inside", False):
                return really(file, mode, buffering, *args, **named)
            changes = any(letter in mode for letter in "wxa+")
            raw_mode = mode.replace("b", "").replace("t", "")
            found = Call("create" if changes else "open", path, changes)
            raw = self.pass_by(found, lambda: _File(path, raw_mode, self))
            binary: Any = io.BufferedWriter(raw) if changes else io.BufferedReader(raw)
            return binary if "b" in mode else io.TextIOWrapper(binary, *args, **named)

        return call


class _File(io.FileIO):
    """An open file whose reads and writes pass by."""

    def __init__(self, path: str, mode: str, shim: _Shim) -> None:
        super().__init__(path, mode)
        self._path, self._shim = path, shim

    def readall(self) -> bytes:
        return self._shim.pass_by(Call("read", self._path, False), super().readall)

    def readinto(self, buffer: Any) -> Any:
        read = super().readinto
        return self._shim.pass_by(Call("read", self._path, False), lambda: read(buffer))

    def write(self, data: Any) -> int:
        write = super().write
        found = Call("write", self._path, True, descriptor=self.fileno())
        return self._shim.pass_by(found, lambda: write(data))


@contextmanager
def watched(root: Path, watcher: Watcher) -> Generator[None]:
    """Every call on `root` or a path below it passes by `watcher`, in whatever thread."""
    shim = _Shim(root, watcher)
    stand_ins: dict[str, Any] = {name: shim.on_path(name, getattr(os, name), changes=False) for name in READS}
    stand_ins |= {name: shim.on_path(name, getattr(os, name), changes=True) for name in CHANGES}
    stand_ins |= {name: shim.moving(name, getattr(os, name)) for name in MOVES}
    stand_ins |= {name: shim.on_open_file(name, getattr(os, name)) for name in ON_OPEN_FILES}
    stand_ins["open"] = shim.opening(os.open)
    open_file = shim.opening_files(builtins.open)
    with (
        patch.multiple(os, **stand_ins),
        patch.object(builtins, "open", open_file),
        patch.object(io, "open", open_file),
        patch.object(fcntl, "flock", shim.on_open_file("flock", fcntl.flock)),
    ):
        yield
