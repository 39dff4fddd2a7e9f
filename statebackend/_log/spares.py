"""Finds local copies of commits that the primary has damaged or lost, and puts them back.

A copy says of itself that it is whole and of its place. That it is the very entry that was in the log has to be proved
by the log: a writer that was fenced may have left a copy of a commit that was never made. Every attempt to append has
a stamp of its own, and sends the same bytes each time. So the copy is the entry if the log has its stamp:

    the hint names it | a claim behind it names it | the damaged object at its place still has it
"""

import logging
from collections.abc import Callable
from functools import cached_property
from typing import Final

import msgspec

from statebackend._codec.commit import Claim, Commit
from statebackend._log.log_end import LogEnd
from statebackend._log.log_reader import LogReader
from statebackend._log.names import HINT_KEY, entry_key
from statebackend.abc import ObjectStore
from statebackend.errors import (
    CorruptCommitError,
    DataError,
    MissingObjectError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreError,
)

_logger = logging.getLogger(__name__)

OpenCopies = Callable[[], ObjectStore | None]
"""Opens the local copies of a job, if it has some. Called once a commit is damaged or gone, and never again."""


class Spare(msgspec.Struct, frozen=True):
    """A whole local copy of a commit that cannot be read in the primary. `proof`: how the log names it, if it does."""

    commit: Commit
    body: bytes
    proof: str | None

    @property
    def key(self) -> str:
        """Where it belongs."""
        return entry_key(self.commit.sequence)


class Spares:
    """The local copies of the commits of one job. What `copies` opens is only read; without it there are none."""

    def __init__(self, primary: ObjectStore, log: LogReader, copies: OpenCopies | None) -> None:
        self._primary: Final = primary
        self._log = log
        self._open_copies = copies

    @cached_property
    def _copies(self) -> ObjectStore | None:
        return None if self._open_copies is None else self._open_copies()

    async def newest(self, end: LogEnd) -> Spare | None:
        """The copy of the newest commit of a log with that end, which cannot be read; only if it is proved to be it."""
        sequence = end.newest if end.lost is None else end.lost.sequence
        spare = None if sequence is None else await self.find(sequence, end)
        return None if spare is None or spare.proof is None else spare

    async def find(self, sequence: int, end: LogEnd | None) -> Spare | None:
        """The copy of a commit, if the primary has the entry damaged or not at all. Raises `StoreError`."""
        if self._copies is None:
            return None
        left = await self._left_of(sequence)
        if left is None:
            return None
        try:
            body = await self._copies.get(entry_key(sequence))
            commit = await self._log.load_commit(sequence, body=body)
        except (StoreError, DataError):
            return None
        return Spare(commit, body, await self._proof(commit, left, end))

    async def put_back(self, spare: Spare) -> None:
        """Make the primary whole again. Others may do the same at the same time: the bytes are the same.

        Raises `StoreError`; a failed or cancelled call has put it back, or not.
        """
        try:
            await self._primary.put_if_absent(spare.key, (spare.body,))
        except ObjectExistsError:
            if await self._left_of(spare.commit.sequence) is None:
                return  # somebody else was faster: look again
            await self._primary.put(spare.key, (spare.body,))
        _logger.warning(
            "a commit was damaged or gone in the primary and has been put back from its local copy: key=%s proof=%s",
            spare.key,
            spare.proof,
        )

    async def _left_of(self, sequence: int) -> bytes | None:
        """The bytes at the place of an entry that cannot be read, none if it is gone; `None` if it can be read."""
        try:
            await self._log.load(sequence)
        except MissingObjectError:
            return b""
        except CorruptCommitError:
            try:
                return await self._primary.get(entry_key(sequence))
            except ObjectNotFoundError:
                return b""
        return None

    async def _proof(self, commit: Commit, left: bytes, end: LogEnd | None) -> str | None:
        hint = await self._log.hint()
        if hint is not None and hint.verified and hint.names(commit):
            return f"{HINT_KEY} names its stamp"
        if (
            end is not None
            and isinstance(end.entry, Claim)
            and (end.entry.newest, end.entry.newest_stamp) == (commit.sequence, commit.stamp)
        ):
            return f"{entry_key(end.entry.sequence)} names its stamp"
        if commit.stamp.encode() in left:
            return "the damaged object still has its stamp"
        return None
