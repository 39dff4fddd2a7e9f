"""The states of a job that is seeded: declared as the stream declares them, and how each is described and encoded."""

import copy
import inspect
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from statebackend._state.declarations import StateDeclarations
from statebackend._state.declared import KeyedStates
from statebackend._state.kinds.every_kind import KeyedState
from statebackend._upkeep.seeding.encoders import ColumnEncoder, Encoder, KeyedEncoder
from statebackend.errors import InputError
from statebackend.ids import ClockKind, ClockMark, KeyGroupRange, StateDescriptor, all_key_groups


class Opens(Protocol):
    """A `KeyedProcessor`, as a room below it knows it."""

    def open(self, context: Any) -> None:
        """Declare states."""
        ...

    def close(self) -> Any:
        """Close what `open` has made."""
        ...


Declares = Opens | Callable[[StateDeclarations], object]
"""A `KeyedProcessor`, or a function that declares states, as the one that the stream calls with its backend."""


class _Context(StateDeclarations):
    """The context for a processor's `open`: it declares states, and tells what any tells before the first batch."""

    def __init__(self, states: KeyedStates) -> None:
        self._states = states
        self.batch_id = -1
        self.late_rows = 0
        self.timer_name = ""
        self.clock_s: float | None = None if states.clock.mark is None else states.clock.mark.now_s
        self.clock_before_s = self.clock_s
        self.is_usable = True
        self.key_groups: KeyGroupRange = states.key_groups

    def _declaring(self) -> KeyedStates:
        return self._states


class SeededStates:
    """The states that were declared. They stay empty."""

    def __init__(self, states: KeyedStates) -> None:
        self._states = states
        self.max_parallelism: Final = states.max_parallelism

    @classmethod
    async def declared(
        cls, declares: Declares, max_parallelism: int, clock_s: float | None, clock_kind: ClockKind
    ) -> "SeededStates":
        """Call what declares the states, and forget what else it has made. Raises what it does."""
        mark = None if clock_s is None else ClockMark(clock_s, clock_kind)
        states = KeyedStates(all_key_groups(max_parallelism), max_parallelism, clock=mark)
        if hasattr(declares, "open") and not isinstance(declares, type):
            processor = copy.copy(cast("Opens", declares))
            processor.open(_Context(states))
            if inspect.isawaitable(closing := processor.close()):
                await closing
        elif callable(declares) and not hasattr(declares, "open"):
            declares(_Context(states))
        else:
            raise InputError(
                "states must be a KeyedProcessor, or a function that declares them: not a class",
                given=type(declares).__name__,
            )
        return cls(states)

    @property
    def descriptors(self) -> tuple[StateDescriptor, ...]:
        """The states as a commit describes them."""
        return self._states.descriptors

    @property
    def clock(self) -> ClockMark | None:
        """The job's clock."""
        return self._states.clock.mark

    def encoder(self, name: str) -> Encoder:
        """The encoder of a state's rows. Raises `InputError` for a name that was not declared, and operator state."""
        if (state := self._states.declared.get(name)) is None:
            raise InputError(
                "no keyed state of that name is declared", state=name, declared=sorted(self._states.declared)
            )
        state_id = next(each.state_id for each in self.descriptors if each.name == name)
        if isinstance(state, KeyedState):
            return KeyedEncoder(state, state_id, self.max_parallelism)
        return ColumnEncoder(state, state_id, self.max_parallelism)
