"""A moment as a caller names it, in seconds since 1970 as commits have them. Pure."""

import datetime as dt
import math
from typing import Final

from statebackend.errors import InputError

Moment = dt.datetime | str | float
"""An aware `datetime`, text in ISO 8601 with its zone, or seconds since 1970, as a number or as text."""

AHEAD_MAX_S: Final = 86_400.0
"""How far a moment may lie ahead of this host's clock, which may be slow."""
ROUNDED_S: Final = 1e-6
"""A `datetime` has microseconds, a commit a bit more: one that is shown, and asked for as shown, is meant itself."""


def moment_s(at: Moment, *, now_s: float) -> float:
    """The moment in seconds since 1970. Raises `InputError` for what is none, or has not come yet.

    So milliseconds are refused: the moment that they would be lies thousands of years ahead.
    """
    found = _seconds(at)
    if not math.isfinite(found):
        raise InputError("a moment is a finite number of seconds since 1970", at=at)
    if found > now_s + AHEAD_MAX_S:
        raise InputError(
            "that moment has not come yet: give seconds since 1970, not milliseconds, or text in ISO 8601", at=at
        )
    return found


def iso_of(at_s: float) -> str:
    """The moment as text, which `moment_s` takes back."""
    try:
        return dt.datetime.fromtimestamp(at_s, dt.UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return repr(at_s)


def _seconds(at: object) -> float:
    if isinstance(at, str):
        at = _parsed(at)
    if isinstance(at, dt.datetime):
        if at.utcoffset() is None:
            raise InputError("the moment has no zone: say which, as in 2026-11-24T10:00:00+01:00", at=at.isoformat())
        return at.timestamp()
    if isinstance(at, bool) or not isinstance(at, int | float):
        raise InputError("a moment is an aware datetime, text in ISO 8601, or seconds since 1970", at=at)
    try:
        return float(at)
    except OverflowError:
        return math.inf


def _parsed(text: str) -> dt.datetime | float:
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return dt.datetime.fromisoformat(text.strip())
    except ValueError:
        raise InputError(
            "a moment is text in ISO 8601, as 2026-11-24T10:00:00Z, or seconds since 1970", at=text
        ) from None
