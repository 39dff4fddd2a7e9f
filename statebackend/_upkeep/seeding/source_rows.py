"""Rows, into which each source of a seed is cut: an encoder asks them for the form that its kind of state takes."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from statebackend.ids import Key


class SourceRows(ABC):
    """Some rows of a source. `first` is the number of the first one, from 0."""

    def __init__(self, first: int) -> None:
        self.first: Final = first

    @abstractmethod
    def __len__(self) -> int:
        """The number of rows."""

    @abstractmethod
    def pairs(self) -> tuple[Sequence[Key], Sequence[Any]]:
        """The keys and what each is set to, as Python values. Raises `InputError`, `KeyTypeError` for null keys."""

    @abstractmethod
    def columns(self, schema: Any, key_type: Any) -> tuple[Any, Mapping[str, Any]]:
        """The keys as an array of `key_type`, and an array for each column of `schema`.

        Raises `InputError` for columns that are missing, unknown or of another type, `KeyTypeError`,
        `ValueEncodeError`.
        """

    @abstractmethod
    def row(self, number: int) -> "SourceRows":
        """One of the rows alone."""

    def name_of(self, number: int) -> int | str:
        """The name by which an error tells one of the rows: its number in the source."""
        return self.first + number


class Source(ABC):
    """The rows of one state. `total`: how many there are, if that is known before they are read.

    `is_read_once`: reading uses it up, so one that has no rows may have been read before.
    """

    total: int | None = None
    is_read_once: bool = False

    @abstractmethod
    def rows(self) -> Iterator[SourceRows]:
        """The rows, once. May block. Raises `InputError` if they cannot be read, and what the user's iterable does."""
