"""The names of a batch's columns: a row is a mapping by name, so a name that occurs twice would lose a value."""

from collections import Counter
from collections.abc import Sequence

from statebackend.errors import InputError


def check_one(column: str, names: Sequence[str]) -> None:
    """Raise `InputError` unless there is exactly one column of this name."""
    if (found := names.count(column)) != 1:
        raise InputError("there must be exactly one column of that name", column=column, found=found, known=[*names])


def check_distinct(names: Sequence[str]) -> None:
    """Raise `InputError` if columns share a name, as after a join of two frames that both have it."""
    if twice := twice_in(names):
        raise InputError(
            "columns share a name, and a row can have only one of them: drop one, or rename it",
            columns=twice,
            known=[*names],
        )


def twice_in(names: Sequence[str]) -> list[str]:
    """The names that occur more than once, each once."""
    return [name for name, count in Counter(names).items() if count > 1]
