"""Gives memory that nobody uses back to the system: beside merges and batches that was as much again as the rows took.

The C library keeps what is freed for the next time, and glibc so for each thread, in places full of holes.
"""

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

_STATM: Final = Path("/proc/self/statm")


class FreeMemory:
    """Watches how much memory the process takes, without files."""

    def __init__(self) -> None:
        self._least = own_bytes()

    def give_back(self, more_than: int) -> None:
        """Give back what is free if the process takes so many bytes more than at least since it last did so.

        That takes 10 to 20 ms, and what is soon used again as much. So it pays for memory that merges have used.
        """
        self._least = min(self._least, own_bytes())
        if _TRIM is not None and own_bytes() - self._least > more_than:
            _TRIM(0)
            self._least = own_bytes()


def own_bytes() -> int:
    """The memory that this process takes and no file backs; 0 where the system does not say."""
    try:
        _, resident, shared, *_ = _STATM.read_bytes().split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def _opened() -> Callable[[int], Any] | None:
    """The `malloc_trim` of glibc, where it is."""
    if sys.platform != "linux":
        return None
    found: Callable[[int], Any] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return found


_TRIM: Final = _opened()
