"""Processes that read a simulated job from outside, as columns, beside its lives and its sweeps.

Each read is judged: what it shows is what one commit holds, the newest of its time or the one that was asked for. Or it
is an error, and then there is a reason for it.
"""

from random import Random
from typing import Any, Final

import anyio
import msgspec

from statebackend._codec.commit import Commit
from statebackend._codec.plain import plain
from statebackend._reading.opened_state import read_batches
from statebackend._state.time.ttl import TimeToLive
from statebackend.abc import ObjectStore
from statebackend.errors import (
    CheckpointNotFoundError,
    InputError,
    SavepointNotFoundError,
    StateBackendError,
    StoreAccessError,
    StoreUnavailableError,
)
from statebackend.ids import Key
from statebackend.settings import Settings
from tests import invariants
from tests.simulation.job import SimulatedJob
from tests.simulation.scenario import NIGHT_S, SAVEPOINTS, ReaderPlan
from tests.simulation.states import COLUMNS, STATES
from tests.simulation.timed import IDLE, RECENT, TIMED_STATES, TTL_S, text_of

GIVES_UP_S: Final = 20 * NIGHT_S
"""Some requests are never answered."""


class Reader:
    """One process that reads."""

    def __init__(
        self, plan: ReaderPlan, job: SimulatedJob, settings: Settings, store: ObjectStore, *, seed: str, tell: Any
    ) -> None:
        self._plan = plan
        self._job = job
        self._settings = settings
        self._store = store
        self._tell = tell
        self._chance = Random(seed)  # to be replayed

    async def run(self) -> None:
        """Read again and again."""
        await anyio.sleep(self._plan.after_s)
        for _ in range(self._plan.reads):
            with anyio.move_on_after(GIVES_UP_S):
                await self._read()
            await anyio.sleep(self._plan.pause_s)

    async def _read(self) -> None:
        state, begun = self._chance.choice((*STATES, *TIMED_STATES)), self._job.newest
        asked, wanted = self._draw_commit()
        options: dict[str, Any] = {"ttl": TimeToLive(TTL_S)} if state == RECENT else {}
        options |= {} if state == COLUMNS else {"key_as_json": True}
        floor = self._job.floor
        try:
            async with read_batches(self._settings, state, store=self._store, **asked, **options) as batches:
                opened_at = self._job.newest
                rows = [row async for batch in batches for row in batch.to_pylist()]
        except StateBackendError as error:
            self._tell(f"reads {state}: {type(error).__name__}")
            with self._job.judging():
                self.judge_error(error, state, asked, wanted, begun=begun, floor=floor)
            return
        self._tell(f"reads {state} of checkpoint {batches.checkpoint_id}: {len(rows)} rows")
        with self._job.judging():
            commit = next(each for each in self._job.commits if each.checkpoint_id == batches.checkpoint_id)
            if wanted is not None:
                assert commit.sequence == wanted.sequence, f"asked for {wanted.sequence}, read {commit.sequence}"
            elif "savepoint" in asked:
                assert commit.sequence in self._job.named(asked["savepoint"]), "read a commit without that name"
            else:
                invariants.assert_newest_of_its_time(commit.sequence, newest_at_begin=begun, newest_at_end=opened_at)
            self.judge_rows(rows, state, commit)

    def _draw_commit(self) -> tuple[dict[str, Any], Commit | None]:
        """Draw the arguments of a read, and its commit, if they name a certain one."""
        commits = self._job.retained
        if self._plan.which == "older" and commits:
            wanted = self._chance.choice(commits)
            return {"checkpoint_id": wanted.checkpoint_id}, wanted
        name = self._chance.choice(SAVEPOINTS)
        if self._plan.which == "savepoint" and self._job.named(name):
            return {"savepoint": name}, None
        return {}, None

    def judge_rows(self, rows: list[dict[str, Any]], state: str, commit: Commit) -> None:
        """All rows are those of one commit: none lacks, none is of another one, none has expired."""
        found = {row["key"]: row["text" if state == COLUMNS else "value"] for row in rows}
        assert len(found) == len(rows), f"a key of {state} is read twice: {rows}"
        time = self._job.time_at(commit.sequence)
        contents = invariants.living(self._job.contents_at(commit.sequence), time.now_s, TTL_S)
        expected = {shown_key(key, state): shown(value, state) for (n, key), value in contents.items() if n == state}
        invariants.assert_same_contents(
            {(state, key): value for key, value in found.items()},
            {(state, key): value for key, value in expected.items()},
            f"a read of checkpoint {commit.checkpoint_id}",
        )

    def judge_error(
        self,
        error: StateBackendError,
        state: str,
        asked: dict[str, Any],
        wanted: Commit | None,
        *,
        begun: int,
        floor: int,
    ) -> None:
        """An error has a reason: the weather, a sweep, a name that was dropped, or a state that is not there yet."""
        job = self._job
        if isinstance(error, (StoreUnavailableError, StoreAccessError)):
            return
        if isinstance(error, SavepointNotFoundError):
            assert asked["savepoint"] in job.dropped, "a savepoint was not found, and nobody has dropped it"
        elif isinstance(error, CheckpointNotFoundError):
            is_swept = job.floor > (floor if wanted is None else wanted.sequence)
            assert is_swept, f"told that a checkpoint was swept, and the floor is {job.floor}"
            assert "savepoint" not in asked or asked["savepoint"] in job.dropped, "a savepoint was swept"
        elif isinstance(error, InputError):
            names = (asked.get("savepoint"), wanted)
            candidates = [wanted] if wanted is not None else [c for c in job.commits if c.sequence >= begun]
            if names[0] is not None:
                candidates = [job.commit_at(each) for each in job.named(asked["savepoint"])]
            assert begun < 0 or any(
                state not in {each.name for each in commit.states} or (state == RECENT and commit.clock is None)
                for commit in candidates
            ), f"reading {state} is refused without a reason: {error}"
        else:
            raise error


def shown_key(key: Key, state: str) -> Key:
    """A key of the state as it is read."""
    return key if state == COLUMNS else msgspec.json.encode(plain(key)).decode()


def shown(value: Any, state: str) -> object:
    """A value of the state as it is read."""
    if state == COLUMNS:
        return value["text"]
    return list(value) if state == IDLE else text_of(value)
