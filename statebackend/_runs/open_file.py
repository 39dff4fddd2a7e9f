"""A file of a run, open to be read.

Read by `pread`, or mapped and never touched (`_runs/mapped.py`): reading a mapped file that is cut short, or lies on a
disk that fails, kills the process. Here both raise.
"""

import os
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from statebackend._runs.mapped import Mapping, mapped
from statebackend.errors import StoreUnavailableError


class OpenFile:
    """A file to read from, closed when nobody refers to it. It stays whole when its name is deleted.

    `mend` gets the content from the other copy, a file that is open; without it damage stays.
    """

    def __init__(self, number: int, path: Path) -> None:
        """`number`: the descriptor, which this object closes. `path` may be no name of the file any more."""
        self._number = number
        self.mend: Callable[[], int] | None = None
        weakref.finalize(self, os.close, number)
        self.path: Final = path
        self.size_bytes: Final = os.fstat(number).st_size
        self._mappings: list[Mapping | None] = []  # the last one counts; others may be being read

    @property
    def address(self) -> int | None:
        """Where the content lies for `copied`, `None` where it cannot be mapped."""
        if not self._mappings:
            self._mappings.append(mapped(self._number, self.size_bytes))
        found = self._mappings[-1]
        return None if found is None else found.address

    @classmethod
    def at(cls, path: Path) -> Self:
        """The file of that name. Raises `OSError`."""
        return cls(os.open(path, os.O_RDONLY | os.O_CLOEXEC), path)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill the buffer. Raises `StoreUnavailableError` where the disk fails or the file has become shorter."""
        done = 0
        while done < len(buffer):
            try:
                count = os.preadv(self._number, [buffer[done:]], offset + done)
            except OSError as error:
                raise StoreUnavailableError(
                    "a file of the state cannot be read", path=str(self.path), offset=offset, reason=error.strerror
                ) from error
            if not count:
                raise StoreUnavailableError(
                    "a file of the state has become shorter while it was open", path=str(self.path), offset=offset
                )
            done += count

    def read(self, offset: int, length: int) -> bytes:
        """So many bytes, as `read_into`."""
        data = bytearray(length)
        self.read_into(memoryview(data), offset)
        return bytes(data)

    def hasten(self, offsets: Sequence[int], length: int) -> None:
        """Have the system read these places ahead, all at once, where it can."""
        if sys.platform == "linux":
            with suppress(OSError):
                for offset in offsets:
                    os.posix_fadvise(self._number, offset, length, os.POSIX_FADV_WILLNEED)

    def replace(self) -> bool:
        """Read from the other copy from now on, if there is one. Raises what `mend` raises."""
        if self.mend is None:
            return False
        number = self.mend()
        try:
            os.dup2(number, self._number, inheritable=False)  # at once, for whatever thread reads here
            if self._mappings:
                self._mappings.append(mapped(self._number, self.size_bytes))
        finally:
            os.close(number)
        return True

    def remove_name(self) -> None:
        """Delete the file's name, if it still has it: nobody opens a damaged copy again."""
        with suppress(OSError):
            found, ours = self.path.stat(), os.fstat(self._number)
            if (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino):
                self.path.unlink()
