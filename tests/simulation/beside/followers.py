"""Processes that follow the change feed of a state, beside the lives and the sweeps of a simulated job.

A follower applies what the feed says to a dictionary, commit by commit: after each it must hold what that commit holds.
Where the feed ends, because the job was taken back or because a sweep was quicker, there is a reason for it, and the
follower begins anew, by a read of the whole state.
"""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final

import anyio

from statebackend._codec.commit import Commit
from statebackend._reading.changed import APPEND, CHANGE_TYPE, CHECKPOINT_ID, DELETE
from statebackend._reading.feed import Stretch, open_changes, stretch_after
from statebackend._reading.opened_state import read_batches
from statebackend._upkeep.job_primary import open_job_primary
from statebackend.abc import ObjectStore
from statebackend.errors import (
    CheckpointNotFoundError,
    InputError,
    RewindError,
    StateBackendError,
    StoreAccessError,
    StoreUnavailableError,
)
from statebackend.settings import Settings
from tests.simulation.beside.readers import shown, shown_key
from tests.simulation.job import SimulatedJob
from tests.simulation.scenario import NIGHT_S, ReaderPlan
from tests.simulation.states import COLUMNS, STATES

GIVES_UP_S: Final = 20 * NIGHT_S
"""Some requests are never answered."""


class Follower:
    """One process that follows one state."""

    def __init__(
        self,
        plan: ReaderPlan,
        job: SimulatedJob,
        settings: Settings,
        store: ObjectStore,
        *,
        seed: str,
        tell: Callable[[str], None],
    ) -> None:
        self._plan = plan
        self._job = job
        self._settings = settings
        self._store = store
        self._tell = tell
        self._state = Random(seed).choice(STATES)  # to be replayed
        self._at: int | None = None
        """The commit that it has, `None` before it has one."""
        self._rows: dict[Any, Any] = {}

    async def run(self) -> None:
        """Look again and again."""
        await anyio.sleep(self._plan.after_s)
        for _ in range(self._plan.reads):
            floor, begun = self._job.floor, self._job.newest
            try:
                with anyio.move_on_after(GIVES_UP_S):
                    await self._look()
            except StateBackendError as error:
                self._tell(f"follows {self._state} from {self._at}: {type(error).__name__}")
                with self._job.judging():
                    self.judge_end(error, floor=floor, begun=begun)
                if not isinstance(error, StoreUnavailableError):
                    self._at = None
            await anyio.sleep(self._plan.pause_s)

    async def _look(self) -> None:
        if self._at is None:
            await self._begin()
            return
        async with open_job_primary(self._settings, self._store) as primary:
            newest, _ = await primary.find()
            found = await stretch_after(primary, self._at, newest)
        if found.commits:
            await self._follow(found)

    async def _begin(self) -> None:
        async with read_batches(
            self._settings, self._state, store=self._store, key_as_json=self._state != COLUMNS
        ) as batches:
            rows = [row async for batch in batches for row in batch.to_pylist()]
        commit = next(each for each in self._job.commits if each.checkpoint_id == batches.checkpoint_id)
        self._rows = {row["key"]: self._value_in(row) for row in rows}
        self._at = commit.sequence
        self._tell(f"begins to follow {self._state} at {self._at}")

    async def _follow(self, found: Stretch) -> None:
        """Take all of the stretch, or nothing."""
        async with open_changes(
            self._settings,
            self._state,
            sequences=[commit.sequence for commit in found.commits],
            before=None if found.before is None else found.before.sequence,
            key_as_json=self._state != COLUMNS,
            store=self._store,
        ) as batches:
            changes = [row async for batch in batches for row in batch.to_pylist()]
        self._tell(f"follows {self._state} to {found.commits[-1].sequence}: {len(changes)} changes")
        for commit in found.commits:
            for row in changes:
                if row[CHECKPOINT_ID] == commit.checkpoint_id:
                    self._apply(row)
            with self._job.judging():
                self.judge_followed(commit)
        self._at = found.commits[-1].sequence

    def _apply(self, row: Mapping[str, Any]) -> None:
        assert row[CHANGE_TYPE] != APPEND, "there are no lists"
        if row[CHANGE_TYPE] == DELETE:
            self._rows.pop(row["key"], None)  # it may have come and gone within the commit
        else:
            self._rows[row["key"]] = self._value_in(row)

    def _value_in(self, row: Mapping[str, Any]) -> Any:
        return row["text" if self._state == COLUMNS else "value"]

    def judge_followed(self, commit: Commit) -> None:
        """The state that was read first, with the changes of each commit since, is what the last of these holds."""
        expected = {
            shown_key(key, self._state): shown(value, self._state)
            for (name, key), value in self._job.contents_at(commit.sequence).items()
            if name == self._state
        }
        wrong = [key for key in {*self._rows, *expected} if self._rows.get(key) != expected.get(key)]
        assert not wrong, f"the feed of {self._state} up to commit {commit.sequence} is wrong for {sorted(wrong)}"

    def judge_end(self, error: StateBackendError, *, floor: int, begun: int) -> None:
        """A feed ends for a reason: the weather, a sweep that was quicker, or a job that was taken back behind it."""
        job, at = self._job, self._at
        if isinstance(error, (StoreUnavailableError, StoreAccessError)):
            return
        if isinstance(error, RewindError):
            newest = [commit.sequence for commit in job.commits if commit.sequence >= begun]
            assert any(at not in self._ancestors(each) for each in newest), f"the job is not behind {at}: {error}"
        elif isinstance(error, CheckpointNotFoundError):
            assert job.floor > (floor if at is None else at), f"told that it was swept from {at}, floor {job.floor}"
        elif isinstance(error, InputError):
            is_named = all(self._state in {each.name for each in commit.states} for commit in job.commits)
            assert begun < 0 or not is_named, f"following {self._state} is refused without a reason: {error}"
        else:
            raise error

    def _ancestors(self, sequence: int) -> set[int]:
        found = set[int]()
        parent: int | None = sequence
        while parent is not None:
            found.add(parent)
            parent = self._job.commit_at(parent).parent
        return found
