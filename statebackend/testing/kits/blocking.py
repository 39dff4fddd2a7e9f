"""Sees calls that block a thread: sleeps, files, sockets with a timeout other than zero, SQLite, new processes.

It sees every call from Python to C, however the function was imported, and knows some by name. It does not see what an
extension module does by itself.
"""

import io
import socket
import sqlite3
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

_ON_FILES: Final = (
    "close fdatasync fsync link listdir lstat mkdir open pread pwrite read readv remove rename replace rmdir scandir "
    "sendfile stat symlink system truncate unlink utime waitpid write writev"
)
_FUNCTIONS: Final = frozenset(
    {
        *(f"{os}.{name}" for os in ("posix", "nt") for name in _ON_FILES.split()),
        "_io.open",
        "_posixsubprocess.fork_exec",
        "_socket.getaddrinfo",
        "_socket.gethostbyname",
        "_sqlite3.connect",
        "io.open",
        "time.sleep",
    }
)
_FILES: Final = (io.FileIO, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, sqlite3.Connection, sqlite3.Cursor)
_ON_SOCKETS: Final = frozenset({"accept", "connect", "recv", "recv_into", "recvfrom", "send", "sendall", "sendto"})


@contextmanager
def blocking_calls() -> Generator[list[str]]:
    """Collect the blocking calls that this thread makes within the block, by name. Takes the thread's profiler."""
    found: list[str] = []

    def hear(_: FrameType, event: str, function: Any) -> None:
        if event == "c_call" and _blocks(function):
            found.append(function.__qualname__)

    before = sys.getprofile()
    sys.setprofile(hear)
    try:
        yield found
    finally:
        sys.setprofile(before)


def _blocks(function: Callable[..., Any]) -> bool:
    owner = getattr(function, "__self__", None)
    if isinstance(owner, socket.socket):
        return function.__name__ in _ON_SOCKETS and owner.gettimeout() != 0
    return isinstance(owner, _FILES) or f"{function.__module__}.{function.__name__}" in _FUNCTIONS
