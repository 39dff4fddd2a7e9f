"""Warns of time that stands still without an error: a clock that nothing moves, and timers that nothing takes."""

import logging
from functools import cache

from statebackend._state.declared import KeyedStates

_logger = logging.getLogger(__name__)


class StillTime:
    """Looks at the time of `states` with each snapshot, and warns once of what a slip has probably left standing."""

    def __init__(self, states: KeyedStates) -> None:
        self._states = states
        self._snapshots = 0

    def look(self) -> None:
        """Look before a snapshot. The first one says nothing of the clock: it may be for an edit by hand."""
        clock = self._states.clock
        if clock.kind is None:
            return
        self._snapshots += 1
        if self._snapshots == 2 and clock.mark is not None and not clock.has_moved:
            _logger.warning(
                "the job's clock stands at %s, where it stood when the state was opened, and time-to-live and timers "
                "go by it: call advance_clock once per batch",
                clock.now_s,
            )
        for name in self._states.neglected_timers():
            _tell_neglected(name)


@cache  # on executors each attempt would say it again
def _tell_neglected(name: str) -> None:
    _logger.warning(
        "timers of %r are due by the job's clock, and nothing takes them: declare them before the batch, and write "
        "on_timer, or call due_timers of the backend",
        name,
    )
