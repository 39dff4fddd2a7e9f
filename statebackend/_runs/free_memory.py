"""Gives memory that nobody uses back to the system: beside merges and batches that was as much again as the rows took.

The C library keeps what is freed for the next time, and glibc so for each thread, in places full of holes.
"""

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

BESIDE_MERGE: Final = 4
"""Of the memory for rows in runs, so large a part may be free and not given back to the system."""
BEHIND_BATCH: Final = 2
"""The same behind a batch: the next one uses most of it again."""
_STATM: Final = Path("/proc/self/statm")


class FreeMemory:
    """Watches how much memory the process takes, without files.

    `rows_bytes_max`: the memory for rows in runs; 0 where there are none, and nothing is given back. It is set where
    states are declared, since a thread that merges cannot ask which there are.
    """

    def __init__(self, rows_bytes_max: int = 0) -> None:
        self.rows_bytes_max = rows_bytes_max
        self._least = own_bytes()

    def give_back(self, share: int) -> None:
        """Give back what is free if the process has grown by that share of the rows' memory since it took least.

        That takes 10 to 20 ms, in whichever thread, and what is soon used again as much. So it pays for memory that
        merges have used.
        """
        if _TRIM is None or not self.rows_bytes_max:
            return
        taken = own_bytes()
        self._least = min(self._least, taken)
        if taken - self._least > self.rows_bytes_max // share:
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
