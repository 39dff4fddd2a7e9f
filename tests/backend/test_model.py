"""Random batches, failures, kills, lost and damaged local copies: the state is always a plain dictionary's.

The model applies each committed batch exactly once. A kill here is a backend that is dropped at a random store request,
without any of its clean-up reaching the primary, which is in memory; `test_killed.py` does the same to whole processes,
over files.
"""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import statebackend as sb
from statebackend._portal import Held, Portal
from statebackend.errors import OutcomeUnknownError, StateBackendError
from statebackend.objectstore import MemoryStore
from statebackend.testing import Fail, Fault, FaultyStore

KEYS = st.one_of(
    st.integers(-3, 3), st.sampled_from(["", "a", "ü", "N14228"]), st.tuples(st.integers(0, 2), st.just("x"))
)
VALUES = st.one_of(st.integers(-(2**63), 2**63 - 1), st.text(max_size=5), st.none())
BATCHES = st.lists(st.tuples(KEYS, st.one_of(st.just("delete"), st.tuples(VALUES))), max_size=12)
NUMBERS = st.integers(0, 2**16)

Value = int | str | None


@dataclass(kw_only=True, eq=False)
class Kill(Fault):
    """From the nth request on nothing comes through any more; the nth itself may still take effect."""

    def strikes(self, operation: Any, key: str) -> bool:
        assert self.nth is not None
        self.matched += 1
        if self.matched > self.nth:
            self.moment = "before"
        return self.matched >= self.nth

    async def strike(self) -> None:
        raise StateBackendError("killed")


class Exactly(RuleBasedStateMachine):
    """One job, driven through everything that may happen to it, against a dictionary."""

    @initialize(
        roots=st.integers(0, 3),
        compression=st.sampled_from(["none", "lz4", "snappy", "zstd"]),
        inline_bytes_max=st.sampled_from([0, 100, 100_000]),
    )
    def begin(self, roots: int, compression: str, inline_bytes_max: int) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.primary = MemoryStore()
        self.portal = Portal()
        self.settings = sb.Settings.from_mapping(
            {
                "job": "model",
                "primary": "memory://model",
                "local": [f"{self.directory}/local{number}" for number in range(roots)],
                "compression": compression,
                "inline_bytes_max": inline_bytes_max,
                "persist_delay_s": 0.0,
                "retry_delay_s": 0.0,
                "preemptive_persist_threshold_bytes": 200,
                "upload_attempts_max": 2,
                "primary_outage_s": 0.0,
            }
        )
        self.committed: dict[sb.Key, Value] = {}
        self.history: list[tuple[int, dict[sb.Key, Value]]] = []
        self.batch = 0
        self.store: FaultyStore | None = None
        self.held: Held[sb.StateBackend] | None = None

    def teardown(self) -> None:
        if hasattr(self, "portal"):
            self._leave()
            self.portal.close()
            shutil.rmtree(self.directory)

    # ------------------------------------------------------------------------------------------ what may happen

    @rule(batch=BATCHES)
    def a_batch_commits(self, batch: list[Any]) -> None:
        self._enter()
        after = self._apply(batch)
        self._checkpoint()
        self._commit(after)

    @rule(batch=BATCHES)
    def a_batch_is_abandoned(self, batch: list[Any]) -> None:
        """The user's function failed: the backend is left without a checkpoint."""
        self._enter()
        self._apply(batch)
        self._leave()

    @rule(batch=BATCHES, nth=st.integers(1, 6), moment=st.sampled_from(["before", "after"]))
    def a_batch_is_killed(self, batch: list[Any], nth: int, moment: Any) -> None:
        """At the nth request to the primary, before or after its effect, the process ends."""
        self._enter()
        assert self.store is not None
        after = self._apply(batch)
        self.store.plan.append(Kill(nth=nth, moment=moment))
        try:
            self._checkpoint()
        except StateBackendError:
            self._die()
            self._find_out(after)
        else:
            self._die()
            self._commit(after)

    @rule(batch=BATCHES, failing=st.integers(1, 3))
    def answers_of_the_primary_are_lost(self, batch: list[Any], failing: int) -> None:
        """What `checkpoint` says is the truth, and "unknown" is found out by opening again."""
        self._enter()
        assert self.store is not None
        after = self._apply(batch)
        self.store.plan.extend(Fail(nth=nth, moment="after") for nth in range(1, failing + 1))
        try:
            self._checkpoint()
        except OutcomeUnknownError:
            self._leave()
            self._find_out(after)
        except StateBackendError:
            self._leave()
            assert self._newest_batch() != self.batch
        else:
            self._leave()
            self._commit(after)

    @rule()
    def the_local_copy_is_lost(self) -> None:
        self._leave()
        for root in self.settings.local:
            shutil.rmtree(root, ignore_errors=True)

    # Below, what is drawn must not depend on names or sizes that differ from run to run: so numbers, taken modulo.

    @rule(which=NUMBERS, position=NUMBERS, flip=st.booleans())
    def a_local_file_is_damaged(self, which: int, position: int, flip: bool) -> None:
        self._leave()
        if files := self._local_files():
            path = files[which % len(files)]
            content = bytearray(path.read_bytes())
            position %= len(content)
            if flip:
                content[position] ^= 1 << which % 8
            else:
                del content[position:]
            path.write_bytes(content)

    @rule(which=NUMBERS)
    def an_older_checkpoint_is_continued(self, which: int) -> None:
        self._leave()
        if self.history:
            checkpoint_id, state = self.history[which % len(self.history)]
            self._enter(checkpoint_id=checkpoint_id)
            assert self._state() == state
            self._checkpoint()
            self._commit(state)

    # ------------------------------------------------------------------------------------------ what always holds

    @invariant()
    def the_state_is_the_dictionary(self) -> None:
        if hasattr(self, "portal"):
            self._enter()
            assert self._state() == self.committed

    # ------------------------------------------------------------------------------------------

    def _enter(self, checkpoint_id: int | None = None) -> sb.StateBackend:
        if self.held is None:
            self.store = FaultyStore(self.primary)
            self.held = self.portal.hold(sb.open_backend(self.settings, store=self.store, checkpoint_id=checkpoint_id))
        self.held.wait()
        return self.held.result()

    def _leave(self) -> None:
        if self.held is not None:
            self.held.close()
        self.held = self.store = None

    def _die(self) -> None:
        """Leave without a trace in the primary, as a killed process does: the plan lets nothing through any more."""
        assert self.store is not None
        assert any(isinstance(fault, Kill) for fault in self.store.plan)
        self._leave()

    def _state(self) -> dict[sb.Key, Value]:
        return dict(self._enter().value_state("values", Value))  # type: ignore[arg-type]  # a union is no class

    def _apply(self, batch: list[Any]) -> dict[sb.Key, Value]:
        self.batch += 1
        state = self._enter().value_state("values", Value)  # type: ignore[arg-type]
        after = dict(self.committed)
        for key, change in batch:
            if change == "delete":
                assert state.pop(key, None) == after.pop(key, None)
            else:
                state[key] = after[key] = change[0]
        assert dict(state) == after
        return after

    def _checkpoint(self) -> None:
        backend = self._enter()

        async def checkpoint() -> None:
            await backend.checkpoint(backend.next_checkpoint_id, source=sb.SourceMark("model", self.batch))

        self.portal.call(checkpoint)

    def _find_out(self, after: dict[sb.Key, Value]) -> None:
        """Whether the batch was committed, nobody knows until the job is opened again."""
        if self._newest_batch() == self.batch:
            self._commit(after)

    def _commit(self, state: dict[sb.Key, Value]) -> None:
        newest = self._enter().newest
        assert newest is not None
        self.committed = state
        self.history.append((newest.checkpoint_id, state))

    def _newest_batch(self) -> int | None:
        newest = self._enter().newest
        return None if newest is None or newest.source is None else newest.source.batch_id

    def _local_files(self) -> list[Path]:
        return sorted(path for root in self.settings.local for path in Path(root).rglob("taskowned/*/*"))


TestExactly = Exactly.TestCase
TestExactly.settings = hypothesis_settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
