"""Many places of mapped files, copied by one call: a page takes a third of what a read of its own takes.

    process_vm_writev(this process, [place, place, ...], [buffer])

The kernel touches the mapping, and the process never does. So a file that was cut short, or a disk that fails, ends the
copy there, where a process that reads the mapping itself is killed by SIGBUS. Then, and wherever files cannot be mapped
or the call is not allowed, the pages are read by `pread`, which says what is wrong.

The process writes into itself, and does not read from itself: what lies at the other end of the call the kernel has to
pin, which it does at once for a buffer, and one by one for the places.
"""

import ctypes
import mmap
import os
import sys
import weakref
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from statebackend._codec.columns import Flags, Integers, Octets

_IS_HERE: Final = sys.platform == "linux" and sys.maxsize > 1 << 32
_AT_ONCE: Final = 1024  # IOV_MAX
_FAILED: Final = ctypes.c_void_p(-1).value


class Mapping:
    """A file in the address space of the process, until nobody refers to it. Only `copied` may read it."""

    def __init__(self, address: int, size_bytes: int) -> None:
        self.address: Final = address
        weakref.finalize(self, _LIBRARY.munmap, address, size_bytes)


def mapped(number: int, size_bytes: int) -> Mapping | None:
    """Map the file of a descriptor; `None` where that cannot be."""
    if not _IS_HERE:
        return None
    address = _LIBRARY.mmap(None, size_bytes, mmap.PROT_READ, mmap.MAP_SHARED, number, 0)
    if address in {None, _FAILED}:
        return None
    _LIBRARY.madvise(address, size_bytes, mmap.MADV_RANDOM)  # else a page is read with megabytes around it
    return Mapping(address, size_bytes)


def copied(places: Integers, length: int, into: Octets) -> bool:
    """Copy so many bytes from each of these addresses, one behind the other. False if not all of it was done."""
    places_of: npt.NDArray[np.int64] = np.empty((len(places), 2), np.int64)
    places_of[:, 0], places_of[:, 1] = places, length
    process, begin = os.getpid(), into.ctypes.data
    for start in range(0, len(places), _AT_ONCE):
        some = places_of[start : start + _AT_ONCE]
        wanted = len(some) * length
        target = np.array([begin + start * length, wanted], np.int64)
        if _LIBRARY.process_vm_writev(process, some.ctypes.data, len(some), target.ctypes.data, 1, 0) != wanted:
            return False
    return True


def which_absent(places: Integers, length: int) -> Flags:
    """For each of these places in one mapping, if the system would have to read it from the disk."""
    first: Integers = places // mmap.PAGESIZE
    last: Integers = (places + length - 1) // mmap.PAGESIZE
    begin, count = int(first.min()), int(last.max() - first.min()) + 1
    is_here = np.zeros(count, np.uint8)
    _LIBRARY.mincore(begin * mmap.PAGESIZE, count * mmap.PAGESIZE, is_here.ctypes.data)
    is_absent: Flags = (is_here[first - begin] & is_here[last - begin] & 1) == 0
    return is_absent


@cache
def may_hasten() -> bool:
    """True if the system does what `hastened` asks for: the call is of Linux 5.10, and not allowed everywhere."""
    return hasattr(_LIBRARY, "process_madvise") and hasattr(os, "pidfd_open") and hastened(np.empty(0, np.int64), 1)


def hastened(places: Integers, length: int) -> bool:
    """Have the system read so many bytes from each of these addresses ahead. False if not all of it was done.

    It returns when the disk has taken in all but the last ones; meanwhile others have the interpreter.
    """
    if sys.platform != "linux":
        return False
    wanted: npt.NDArray[np.int64] = np.empty((len(places), 2), np.int64)
    wanted[:, 0] = places & -mmap.PAGESIZE
    wanted[:, 1] = places + length - wanted[:, 0]
    try:
        process = os.pidfd_open(os.getpid())
    except OSError:
        return False
    try:
        return all(
            _LIBRARY.process_madvise(process, some.ctypes.data, len(some), mmap.MADV_WILLNEED, 0) >= 0
            for some in (wanted[start : start + _AT_ONCE] for start in range(0, max(1, len(wanted)), _AT_ONCE))
        )
    finally:
        os.close(process)


def _opened() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    library.mmap.argtypes = [address, size, number, number, number, ctypes.c_long]
    library.mmap.restype = address
    library.munmap.argtypes = [address, size]
    library.madvise.argtypes = [address, size, number]
    library.mincore.argtypes = [address, size, address]
    library.process_vm_writev.argtypes = [number, address, ctypes.c_ulong, address, ctypes.c_ulong, ctypes.c_ulong]
    library.process_vm_writev.restype = ctypes.c_ssize_t
    if hasattr(library, "process_madvise"):
        library.process_madvise.argtypes = [number, address, size, number, ctypes.c_uint]
        library.process_madvise.restype = ctypes.c_ssize_t
    return library


_LIBRARY: Final[Any] = _opened() if _IS_HERE else None
