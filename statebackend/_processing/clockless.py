"""Refuses a sink that leaves time standing: hooks that it would never call, and a clock that it would not move."""

from statebackend._processing.event_time import EventTime, Late
from statebackend._processing.processor import KeyedProcessor, overrides
from statebackend.errors import SettingsError
from statebackend.ids import ClockMark


def check_hooks(
    processor: KeyedProcessor, *, event_time: EventTime | None, late: Late | None, clock: str | None
) -> None:
    """Raise `SettingsError` if the processor has hooks of time that are never called.

    `late` and `clock` are those that the sink was given: `process_late` may go with `late="drop"`, and with a `clock`.
    """
    if event_time is None and clock is None and overrides(processor, "on_timer"):
        raise SettingsError(
            "on_timer is never called, because nothing moves the job's clock: give the sink event_time or "
            "clock='batch', or remove on_timer",
            processor=type(processor),
        )
    if late is None and (event_time is not None or clock is None) and overrides(processor, "process_late"):
        raise SettingsError(
            "process_late is never called: give the sink event_time and late='output', say late='drop' or late='keep' "
            "if it is to be left out here, or remove it",
            processor=type(processor),
        )


def check_clock_moves(committed: ClockMark | None, *, by_function: bool = False) -> None:
    """Raise `SettingsError` if the job goes by a clock, for a sink that does not move it. `committed`: that clock."""
    if committed is None:
        return
    before = "clock='batch'" if committed.kind == "processing" else "event_time and lateness_s"
    itself = ", or call advance_clock in the function" if by_function else ""
    raise SettingsError(
        f"the job goes by a clock, and this sink does not move it, so that no value would expire and no timer fire: "
        f"give it {before}, as it had before{itself}, or clock='kept' to leave the clock where it stands",
        kind=committed.kind,
        clock_s=committed.now_s,
    )
