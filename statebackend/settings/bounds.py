"""Bounds of settings: written beside the type, as `Annotated[int, Bound(...)]`, and checked when a record is made."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Annotated, Any, Final, Literal, cast, get_args, get_origin

import msgspec

from statebackend.errors import SettingsError, in_python_words
from statebackend.settings.credentials import CredentialSource, Secret, foreign_of


class Bound(msgspec.Struct, frozen=True):
    """A condition on a number, and the same in words: `says` completes the sentence "the setting must be ..."."""

    holds: Callable[[Any], bool]
    says: str


def at_least(least: int) -> Bound:
    """`least` or more."""
    return Bound(lambda number: number >= least, f"at least {least}")


def at_most(most: int, reason: str) -> Bound:
    """`most` or less, and the reason why."""
    return Bound(lambda number: number <= most, f"at most {most}: {reason}")


def within(first: int, last: int) -> Bound:
    """`first` to `last`, both included."""
    return Bound(lambda number: first <= number <= last, f"{first} to {last}")


# A wait without an end makes a stream hang for ever, so infinity is refused, and so is NaN.
Pause = Annotated[float, Bound(lambda number: 0 <= number < math.inf, "finite and not negative")]
"""Seconds, or 0."""
Deadline = Annotated[float, Bound(lambda number: 0 < number < math.inf, "finite and positive")]
"""Seconds. A deadline of 0 would expire before the work began."""
Rate = Deadline
"""Events per second."""
Price = Pause
"""US dollars."""
Ratio = Pause
"""A multiple, or 0."""
Amount = Annotated[int, Bound(lambda number: number >= 0, "0 or more")]
"""Bytes or things, or none."""
Count = Annotated[int, at_least(1)]
"""Things, at least one: a limit of 0 would wait for ever."""

_HIDDEN: Final = (Secret | None, CredentialSource | None)
"""Settings whose values are not shown."""
_UNFIT: Final = re.compile("[\\0\\ud800-\\udfff]")


def bounds_of(kind: Any) -> tuple[Bound, ...]:
    """The bounds beside the type `kind`."""
    return tuple(each for each in get_args(kind)[1:] if isinstance(each, Bound))


def record_type(kind: Any) -> type[msgspec.Struct] | None:
    """`kind`, if it is a record of settings, else `None`."""
    return kind if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else None


@cache
def _fields_of(record: type[msgspec.Struct]) -> Sequence[tuple[str, Any, type[msgspec.Struct] | None, Sequence[Bound]]]:
    """Each field: its name, its type, that again if it is a record of settings, and its bounds."""
    fields = msgspec.structs.fields(record)  # half a millisecond
    return [(each.name, each.type, record_type(each.type), bounds_of(each.type)) for each in fields]


def _texts(value: Any) -> Iterable[str]:
    """The texts in the value of a setting."""
    if isinstance(value, Secret):
        value = value.reveal() or ""
    if isinstance(value, str):
        return (value,)
    items = cast("Sequence[object]", value) if isinstance(value, tuple | list) else ()
    return [each for each in items if isinstance(each, str)]


def said_of(error: msgspec.ValidationError, record: type[msgspec.Struct]) -> str:
    """The text of an error in reading a record of settings, with the values that the field at fault may have."""
    said, _, path = str(error).partition(" - at `$.")
    kind: Any = record
    for name in path.rstrip("`").split("."):
        kind = {each[0]: each[1] for each in _fields_of(kind)}.get(name) if record_type(kind) else None
    return in_python_words(error) + (_choices(kind) if said.startswith("Invalid enum") else "")


def _choices(kind: Any) -> str:
    return f"; it may be {', '.join(map(repr, get_args(kind)))}" if get_origin(kind) is Literal else ""


def check_text(name: str, value: Any, *, is_shown: bool) -> None:
    """Raise `SettingsError` for a text that nothing can be named by: no encoder takes it, nor does msgspec."""
    if any(map(_UNFIT.search, texts := [*_texts(value)])):
        is_shown = is_shown and not any("@" in text for text in texts)  # before an "@" there may be a password
        raise SettingsError(
            f"{name} has a NUL or a lone surrogate in it: no file, URL or header can have that",
            **({name: value} if is_shown else {}),
        )


def check_fields(record: msgspec.Struct, prefix: str = "") -> None:
    """Raise `SettingsError` for a field of the wrong type, or out of bounds. Its name is `prefix` and the field's.

    msgspec checks neither when a struct is made directly.
    """
    for field, kind, inner, bounds in _fields_of(type(record)):
        name, value = f"{prefix}{field}", getattr(record, field)
        if inner is not None:
            if not isinstance(value, inner):  # not shown: it may hold a secret
                raise SettingsError(f"{name} must be of the type {inner.__name__}")
            continue
        check_text(name, value, is_shown=kind not in _HIDDEN)
        try:
            converted = msgspec.convert(value, kind, dec_hook=foreign_of)
        except msgspec.ValidationError as error:
            facts = {} if kind in _HIDDEN else {name: value}
            said = f"{name} has a wrong type or value: {in_python_words(error)}{_choices(kind)}"
            raise SettingsError(said, **facts) from error
        msgspec.structs.force_setattr(record, field, converted)  # a list of roots becomes a tuple
        for bound in bounds:
            if not bound.holds(converted):
                raise SettingsError(f"{name} must be {bound.says}", **{name: converted})
