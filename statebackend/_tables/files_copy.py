"""A copy of the files of tables that can be written to while it is made."""

import threading
from collections.abc import Callable

from statebackend.errors import StoreError


class FilesCopy:
    """A copy of the files as of the moment this object was made; until it `ended`, new writes wait in memory.

    Any thread may call the methods. A thread that needs its writes in the files before that makes the copy itself: the
    thread that was meant to may be waiting for it.
    """

    def __init__(self, make: Callable[[], None]) -> None:
        self._make = make
        self._making = threading.Lock()
        self._error: StoreError | None = None
        self.ended = False

    def run(self) -> None:
        """Make the copy if nobody has, else wait until it is made. Raises `StoreUnavailableError`, each time.

        Blocks on the disk.
        """
        with self._making:
            if not self.ended:
                try:
                    self._make()
                except StoreError as error:
                    self._error = error
                self.ended = True
        if self._error is not None:
            raise self._error

    def fail(self, error: StoreError) -> None:
        """Make no copy: `run` raises this."""
        self._error, self.ended = error, True

    def give_up(self) -> None:
        """Do not make the copy, if it is not made yet."""
        with self._making:
            self.ended = True
