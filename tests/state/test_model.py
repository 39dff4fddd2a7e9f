"""A value state against a dictionary: random writes, drains and restores, always equal."""

from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from statebackend._codec.change_sets.state_change import Operation, StateChange
from statebackend._state.declared import KeyedStates
from statebackend._state.kinds.value_state import ValueState
from statebackend.ids import KeyGroupRange
from tests.changes import drained
from tests.codec.samples import KEYS
from tests.state.states import all_states, restored

VALUES = st.integers(-5, 5) | st.text(max_size=3) | st.none() | st.lists(st.integers(0, 3), max_size=2)


class ValueStateAgainstDict(RuleBasedStateMachine):
    """The drained changes are a log; the log replayed is the state as of the last drain."""

    keys = Bundle("keys")

    @initialize()
    def open(self) -> None:
        self.states: KeyedStates = all_states()
        self.state: ValueState[Any] = self.states.value_state("sample", Any)  # type: ignore[arg-type]
        self.model: dict[Any, Any] = {}
        self.dirty: set[Any] = set()
        self.log: list[StateChange] = []

    @rule(target=keys, key=KEYS)
    def key(self, key: Any) -> Any:
        return key

    @rule(key=keys, value=VALUES)
    def set(self, key: Any, value: Any) -> None:
        self.state[key] = value
        self.model[key] = value
        self.dirty.add(key)

    @rule(key=keys)
    def pop(self, key: Any) -> None:
        if key in self.model:
            self.dirty.add(key)
        assert self.state.pop(key, "none") == self.model.pop(key, "none")

    @rule(key=keys, value=VALUES)
    def setdefault(self, key: Any, value: Any) -> None:
        if key not in self.model:
            self.dirty.add(key)
        assert self.state.setdefault(key, value) == self.model.setdefault(key, value)

    @rule(some=st.lists(keys, max_size=3), values=st.lists(VALUES, min_size=3, max_size=3))
    def put_many(self, some: list[Any], values: list[Any]) -> None:
        self.state.put_many(some, values[: len(some)])
        self.model.update(zip(some, values, strict=False))
        self.dirty.update(some)

    @rule(some=st.lists(keys, max_size=3))
    def get_many(self, some: list[Any]) -> None:
        assert self.state.get_many(some, "none") == [self.model.get(key, "none") for key in some]

    @rule()
    def clear(self) -> None:
        self.dirty |= self.model.keys()
        self.state.clear()
        self.model.clear()

    @rule()
    def drain(self) -> None:
        """One change per key touched, with its last value."""
        changes = drained(self.states)
        assert {change.key for change in changes} == self.dirty
        assert len(changes) == len(self.dirty)
        for change in changes:
            expected = Operation.SET if change.key in self.model else Operation.CLEAR
            assert change.operation == expected
            if expected == Operation.SET:
                assert msgspec.msgpack.decode(change.data) == self.model[change.key]
        self.dirty.clear()
        self.log += changes

    @rule()
    def restore(self) -> None:
        """All that was not drained is gone with the process; this one drains first."""
        self.drain()
        self.states = restored(self.states, self.log)
        self.state = self.states.value_state("sample", Any)  # type: ignore[arg-type]

    @rule(split=st.integers(0, 126))
    def restore_in_two_parts(self, split: int) -> None:
        """Two owners of a part each have together what one owner has."""
        self.drain()
        parts = [
            restored(self.states, self.log, part).value_state("sample", Any)  # type: ignore[arg-type]
            for part in (KeyGroupRange(0, split), KeyGroupRange(split + 1, 127))
        ]
        assert len(parts[0]) + len(parts[1]) == len(self.model)
        assert {**parts[0], **parts[1]} == self.model

    @invariant()
    def equal(self) -> None:
        if hasattr(self, "model"):
            assert dict(self.state) == self.model
            assert len(self.state) == len(self.model)


TestValueStateAgainstDict = ValueStateAgainstDict.TestCase
TestValueStateAgainstDict.settings = settings(deadline=None, max_examples=60, stateful_step_count=30)
