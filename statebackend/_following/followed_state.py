"""The state of a job at one commit, in tables of its own: read once, then brought forward by what commits add."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec

from statebackend._backend.assembly import restore_of
from statebackend._backend.stores import local_to_read
from statebackend._backend.tables import HEAP, Tables, open_tables
from statebackend._codec.change_sets.changes import Changes
from statebackend._codec.change_sets.keyed_changes import KeyedChanges
from statebackend._codec.commit import Commit
from statebackend._following.tables import FollowedTables
from statebackend._log.position import FoundCommit
from statebackend._state.declared import KeyedStates
from statebackend._tables.key_groups import OwnedKeys
from statebackend._threads import WorkerThreads
from statebackend._upkeep.job_primary import JobPrimary
from statebackend.abc import Clock, RestoreReport
from statebackend.errors import DataError, SettingsError
from statebackend.ids import ChangeSetHandle, Key, KeyGroupRange, all_key_groups
from statebackend.settings import Settings

FREED_AT_ONCE: Final = 4096
"""Entries freed in one go: a millisecond."""


class StateAtCommit:
    """The state of `key_groups` at `commit`. Reads see one commit at a time; see `tables.py`."""

    def __init__(
        self, primary: JobPrimary, commit: Commit, key_groups: KeyGroupRange, tables: Tables, clock: Clock
    ) -> None:
        self.commit = commit
        self.key_groups: Final = key_groups
        self.opened: Final = tables
        self.tables: Final = FollowedTables(tables.open_table)
        self.applied_at_s = clock.time()
        self._primary = primary
        self._clock = clock
        self._settings: Final = _settings_at(commit, primary.settings)
        self._gone: list[dict[Key, Any]] = []
        self.states = self._states_of(commit)

    @property
    def keys(self) -> OwnedKeys:
        """The keys that there may be."""
        return OwnedKeys(self.key_groups, self.commit.max_parallelism)

    async def fill(self, at_hand: Mapping[str, bytes]) -> RestoreReport:
        """Read all of the commit. As a restore: local copies first, none of which is written."""
        once = restore_of(
            self._settings,
            self._primary.store,
            local_to_read(self._settings, self._primary.threads),
            at_hand=at_hand,
            tables=self.opened,
            threads=self._primary.threads,
            clock=self._clock,
        )
        report = await once.run(self.commit, self.key_groups, self.states.replay, ahead=self.states.ahead)
        self.applied_at_s = self._clock.time()
        return report

    async def read(self, handles: Sequence[ChangeSetHandle], at_hand: Mapping[str, bytes]) -> Sequence[Changes] | None:
        """The changes of these change sets, decoded; `None` if they are too many to hold."""
        if not handles:
            return ()
        once = restore_of(
            self._settings,
            self._primary.store,
            local_to_read(self._settings, self._primary.threads),
            at_hand=at_hand,
            at_hand_first=True,
            tables=HEAP,
            threads=self._primary.threads,
            clock=self._clock,
        )
        found = await once.read(handles, self.key_groups)
        return None if found is None else await _decoded(found, (self.key_groups,), self._primary.threads)

    async def advance(
        self, changes: Sequence[Changes], commit: Commit, may_go_on: Callable[[], Awaitable[None]]
    ) -> None:
        """Apply changes that lead to `commit`. Until the last one is applied, reads see the commit before.

        `may_go_on` is awaited before each piece. An error leaves the commit before to be read, and the state cannot be
        brought forward any more.
        """
        states = self.states if commit.states == self.commit.states else self._states_of(commit)
        tables = self.tables.tables
        if unknown := {part.state_id for part in changes} - tables.keys():
            raise DataError("a change names a state that its commit does not describe", state_id=min(unknown))
        for part in changes:
            table = tables[part.state_id]
            for piece in _pieces(part, table.at_once):
                await may_go_on()
                table.advance(piece)
        await may_go_on()
        self._gone += self.tables.let_go()
        states.clock.stand_at(commit.clock)
        self.states, self.commit = states, commit
        self.applied_at_s = self._clock.time()

    async def free(self, may_go_on: Callable[[], Awaitable[None]]) -> None:
        """Free what `advance` has kept while it applied changes, piece by piece: it is no part of the answers."""
        while self._gone:
            kept = self._gone[-1]
            while len(kept) > FREED_AT_ONCE:
                for _ in range(FREED_AT_ONCE):
                    kept.popitem()
                await may_go_on()
            self._gone.pop()

    def _states_of(self, commit: Commit) -> KeyedStates:
        states = KeyedStates(
            self.key_groups, commit.max_parallelism, commit.states, open_table=self.tables, clock=commit.clock
        )
        states.clock.is_only_read = True
        return states


@asynccontextmanager
async def open_followed(
    primary: JobPrimary, found: FoundCommit, key_groups: KeyGroupRange | None, clock: Clock
) -> AsyncGenerator[tuple[StateAtCommit, RestoreReport]]:
    """The state at the commit that was found, read from it, for as long as the context lasts.

    Raises `SettingsError` if the job does not have these key groups, and as a restore.
    """
    settings = _settings_at(found.commit, primary.settings)
    every = all_key_groups(settings.max_parallelism)
    owned = every if key_groups is None else key_groups
    if not owned or owned.intersection(every) != owned:
        raise SettingsError(
            "the job has other key groups: follow some of those", key_groups=str(owned), there_are=str(every)
        )
    async with open_tables(settings, owned, primary.threads) as tables:
        state = StateAtCommit(primary, found.commit, owned, tables, clock)
        report = await state.fill(found.at_hand)
        yield state, report


def _settings_at(commit: Commit, settings: Settings) -> Settings:
    return msgspec.structs.replace(settings, max_parallelism=commit.max_parallelism)


def _pieces(part: Changes, at_once: int) -> Iterator[Changes]:
    if part.records <= at_once:
        yield part
        return
    for start in range(0, part.records, at_once):
        yield part.between(start, min(part.records, start + at_once))


async def _decoded(
    found: Sequence[Changes], wanted: tuple[KeyGroupRange, ...], threads: WorkerThreads
) -> Sequence[Changes]:
    """The wanted ones, with all decoded that a thread can decode ahead."""

    def decode() -> list[Changes]:
        decoded = [part for each in found if (part := each.of_groups(wanted)) is not None]
        for part in decoded:
            if isinstance(part, KeyedChanges):
                _ = part.keys  # decodes the data, too
        return decoded

    return await threads.cpu(decode)
