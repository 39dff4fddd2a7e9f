"""The timers of a job's states that go by its clock, whether this process has declared them or not."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from msgspec import UNSET, UnsetType

from statebackend._state.time.job_clock import JobClock
from statebackend._state.time.timers import KIND, DueTimer, Timers
from statebackend._tables.key_groups import OwnedKeys
from statebackend._tables.table import Table
from statebackend.errors import InputError
from statebackend.ids import StateDescriptor


class JobTimers:
    """The timers among `descriptors` and `declared`, both by name, whose entries lie in `tables`. These may grow."""

    def __init__(
        self,
        clock: JobClock,
        descriptors: Mapping[str, StateDescriptor],
        declared: Mapping[str, object],
        tables: Mapping[int, Table],
        keys: OwnedKeys,
    ) -> None:
        self._clock = clock
        self._descriptors = descriptors
        self._declared = declared
        self._tables = tables
        self._keys = keys
        self._undeclared: dict[int, Timers] = {}  # by state id

    def take_due(self) -> Iterator[DueTimer]:
        """Take the declared timers that are due by the job's clock, as `take_due`. Raises `InputError` without one."""
        return Timers.take_due(self._declared_by_clock(), self._clock.now_s)

    @property
    def any_due(self) -> bool:
        """True if `take_due` has any. Raises as that."""
        times = (each.next_at() for each in self._declared_by_clock())
        return any(at is not None and at <= self._clock.now_s for at in times)

    def neglected(self) -> Iterator[str]:
        """The names of timers, declared or not, that are due by the job's clock, and that nothing has ever taken."""
        for descriptor in self._by_clock():
            found = self._timers_of(descriptor)
            if not found.were_taken and (at := found.next_at()) is not None and at <= self._clock.now_s:
                yield descriptor.name

    def next_s(self) -> float | UnsetType | None:
        """The earliest timer that goes by the job's clock, declared or not; `None` without one, unset without a clock.

        Of timers that are not declared, those of the commit are counted, once: nothing changes them.
        """
        if self._clock.kind is None:
            return UNSET
        found = [self._timers_of(each).next_at() for each in self._by_clock()]
        return min((at for at in found if at is not None), default=None)

    def _declared_by_clock(self) -> list[Timers]:
        self._clock.check_there_is_one("take timers by `due`")
        declared = [each for each in self._declared.values() if isinstance(each, Timers)]
        by_clock = [each for each in declared if each.go_by_job_clock]
        if declared and not by_clock:
            raise InputError(
                "none of the timers goes by the clock of the job, which is of another kind: declare them for its kind",
                timers=[each.name for each in declared],
                clock=self._clock.kind,
            )
        return by_clock

    def _by_clock(self) -> list[StateDescriptor]:
        """The timers of the clock's kind, declared or not."""
        return [each for each in self._descriptors.values() if each.kind == KIND and each.schema == self._clock.kind]

    def _timers_of(self, descriptor: StateDescriptor) -> Timers:
        declared = self._declared.get(descriptor.name)
        if isinstance(declared, Timers):
            return declared
        if descriptor.state_id not in self._undeclared:
            table = cast("Any", self._tables[descriptor.state_id])
            self._undeclared[descriptor.state_id] = Timers(descriptor.name, table, self._keys)
        return self._undeclared[descriptor.state_id]
