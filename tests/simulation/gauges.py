"""Watches the bytes in flight of a simulated backend, and its ledger, after each of its events."""

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from statebackend._changelog.ledger import Ledger
from statebackend._checkpoint.backend import StateBackend
from statebackend.abc import Observer
from statebackend.settings import Settings
from tests import invariants
from tests.simulation.job import SimulatedJob
from tests.simulation.states import KEYS, STATES, VALUE_CHARACTERS_MAX

DIRTY_BYTES_MAX: Final = 40 * len(KEYS) * len(STATES) * (VALUE_CHARACTERS_MAX + 100)
"""More than one upload can hold: all that a life of many batches leaves unsent if every checkpoint is cancelled."""
LEDGER_EVENTS: Final = (
    *("append", "seal", "take_open", "take_inline", "take_back", "encoded", "persist", "abandon"),
    *("succeed", "fail", "confirm", "reset", "subsume", "truncate", "close"),
)


class Gauges(Observer):
    """Observes the bytes of a backend, and checks its ledger each time."""

    def __init__(self, job: SimulatedJob, settings: Settings, tell: Callable[[str], None]) -> None:
        self.in_flight_bytes = 0
        self.waiting = 0
        self.ledger: Ledger | None = None
        self._job, self._settings, self._tell = job, settings, tell

    def watch(self, ledger: Ledger) -> None:
        """Check this ledger from now on, after each of its events."""
        self.ledger = ledger
        for name in LEDGER_EVENTS:
            setattr(ledger, name, self._checked(getattr(ledger, name)))

    def _checked(self, event: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(event)
        def checked(*args: Any, **kwargs: Any) -> Any:
            try:
                return event(*args, **kwargs)
            finally:
                self._check_ledger()

        return checked

    def in_flight_changed(self, in_flight_bytes: int) -> None:
        self.in_flight_bytes = in_flight_bytes
        with self._job.judging():
            invariants.assert_in_flight_is_bounded(in_flight_bytes, self._settings, DIRTY_BYTES_MAX)

    def queue_changed(self, waiting: int) -> None:
        self.waiting = waiting

    def materialization_begun(self, key_groups: int) -> None:
        self._tell(f"bases of {key_groups} key groups are being written")

    def materialized(self, *, key_groups: int, segments: int, size_bytes: int, seconds: float) -> None:
        self._tell(f"bases of {key_groups} key groups are written, in {segments} segments")

    def materialization_failed(self, error: Exception, *, failures: int) -> None:
        self._tell(f"bases failed to be written, {failures}. time: {type(error).__name__}")

    def _check_ledger(self) -> None:
        with self._job.judging():
            if self.ledger is not None:
                self.ledger.check_invariants()


def ledger_of(backend: StateBackend) -> Ledger:
    """The ledger of a backend's one writer: the only private access."""
    return backend._writer._ledger  # pyright: ignore[reportPrivateUsage]  # nobody else has a use for it
