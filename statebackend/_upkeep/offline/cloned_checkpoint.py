"""Keeps the checkpoint that is cloned until the clone is made: by a savepoint, since the source may be swept meanwhile.

The name of the savepoint is made of what was asked for. So a call that was killed leaves it to the next one, which goes
on with the very checkpoint.
"""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Literal

import msgspec

from statebackend._codec.commit import Commit
from statebackend._log.fresh_names import new_stamp
from statebackend._log.moments import Moment
from statebackend._log.position import check_asked
from statebackend._upkeep.arguments import check_names, check_number
from statebackend._upkeep.job_primary import JobPrimary
from statebackend._upkeep.offline.erase import state_ids
from statebackend.abc import Capability
from statebackend.errors import (
    CheckpointNotFoundError,
    InputError,
    SavepointExistsError,
    SavepointNotFoundError,
    StoreAccessError,
)
from statebackend.settings import Settings

NAMED: Final = "clone-"
"""The names of these savepoints begin with it."""


class AskedClone(msgspec.Struct, frozen=True):
    """The arguments of `clone`: which checkpoint, and which part of it."""

    checkpoint_id: int | None
    savepoint: str | None
    at: Moment | None
    states: Literal["all"] | Sequence[str]
    share: float
    outputs: str

    @property
    def is_partial(self) -> bool:
        """True if objects cannot be copied as they are."""
        return self.states != "all" or self.share < 1.0

    def check(self) -> None:
        """Raise `InputError` for what nobody can clone."""
        check_asked(self.checkpoint_id, self.savepoint, self.at)
        check_names(self.states)
        check_number(self.share, "keys is the share of the keys to clone, such as 0.1: a number")
        if not 0.0 < self.share <= 1.0:
            raise InputError("keys is the share of the keys to clone: more than 0, and at most 1", keys=self.share)
        if self.outputs not in ("take", "leave"):
            raise InputError("outputs must be 'take' or 'leave'", outputs=self.outputs)

    @property
    def part(self) -> str:
        """The part of a checkpoint, in words."""
        names = self.states if self.states == "all" else sorted(self.states)
        return f"{names!r} {self.share!r} {self.outputs}"


class ClonedCheckpoint:
    """The checkpoint of `source` that is cloned to the job of `settings`."""

    def __init__(self, source: JobPrimary, asked: AskedClone, settings: Settings) -> None:
        self._source = source
        self._savepoints = source.positions.savepoints
        self._asked = asked
        said = f"{settings.primary} {settings.job} {asked.checkpoint_id} {asked.at} {asked.part}"
        self._own_name = f"{NAMED}{hashlib.sha256(said.encode()).hexdigest()[:16]}"
        self._name = asked.savepoint

    async def keep(self) -> Commit:
        """The commit to clone, which no sweep deletes from now on. Raises as `clone`."""
        asked, source = self._asked, self._source
        if asked.savepoint is not None or Capability.LIST not in source.store.capabilities:  # nobody can sweep that
            found = await source.find(checkpoint_id=asked.checkpoint_id, savepoint=asked.savepoint, at=asked.at)
            return found.commit
        commit = await self._found() or await self._made()
        self._name = self._own_name
        return commit

    async def _found(self) -> Commit | None:
        """The commit that a call before has kept."""
        with suppress(SavepointNotFoundError):
            return await self._savepoints.find(self._own_name)
        return None

    async def _made(self) -> Commit:
        commit, _ = await self._source.find(checkpoint_id=self._asked.checkpoint_id, at=self._asked.at)
        state_ids(commit, self._asked.states)  # before anything is written
        try:
            try:
                await self._savepoints.keep(self._own_name, commit, random=new_stamp())
            except SavepointExistsError:
                if (found := await self._found()) is not None:  # by the same call, which runs beside this one
                    return found
                await self._savepoints.drop(self._own_name)  # of one that was killed before it had kept it
                await self._savepoints.keep(self._own_name, commit, random=new_stamp())
        except StoreAccessError as error:
            raise InputError(
                "the source may not be written, so nothing keeps its checkpoint meanwhile: have a savepoint made there,"
                " and clone that",
                job=commit.job,
                reason=str(error),
            ) from error
        return commit

    async def check(self, commit: Commit) -> None:
        """Raise unless the source has the checkpoint still: keys of it may have been erased since."""
        if self._name is None:
            return
        found = await self._savepoints.find(self._name)
        if found.stamp != commit.stamp:
            raise CheckpointNotFoundError(
                "the savepoint is of another checkpoint since: clone again",
                name=self._name,
                checkpoint_id=commit.checkpoint_id,
            )

    async def release(self) -> None:
        """Drop the savepoint that was made for this."""
        if self._name == self._own_name:
            with suppress(SavepointNotFoundError):
                await self._savepoints.drop(self._own_name)
