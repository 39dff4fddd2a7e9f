"""The sources of a seed: pairs of Python values, or batches of Arrow, some thousands at a time.

Those of Arrow are found by name, since they need an extra.
"""

import importlib
import inspect
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

from statebackend._upkeep.seeding.source_rows import Source, SourceRows
from statebackend.errors import InputError
from statebackend.ids import Key

PAIRS_AT_ONCE: Final = 4096
"""Pairs that are taken from an iterable, and encoded, together."""
_PAIR: Final = 2


class Pairs(SourceRows):
    """Pairs of Python values."""

    def __init__(self, first: int, keys: Sequence[Any], values: Sequence[Any]) -> None:
        super().__init__(first)
        self._keys = keys
        self._values = values

    def __len__(self) -> int:
        return len(self._keys)

    def pairs(self) -> tuple[Sequence[Key], Sequence[Any]]:
        return self._keys, self._values

    def columns(self, schema: Any, key_type: Any) -> tuple[Any, Mapping[str, Any]]:
        found: tuple[Any, Mapping[str, Any]] = _arrow().columns_of_pairs(self._keys, self._values, schema, key_type)
        return found

    def row(self, number: int) -> "Pairs":
        return Pairs(self.first + number, [self._keys[number]], [self._values[number]])


class PairSource(Source):
    """Pairs of a key and what it is set to, from an iterable or the items of a mapping.

    Raises `InputError` for a generator that was begun: the rows that it has given already would be missing.
    """

    def __init__(self, pairs: Iterable[Any]) -> None:
        if inspect.isgenerator(pairs) and inspect.getgeneratorstate(pairs) != inspect.GEN_CREATED:
            raise InputError(
                "a generator was read before, in part or to its end: make it anew, or give (row for row in rest) for "
                "the rest",
                generator=pairs.__qualname__,
            )
        if isinstance(pairs, Mapping):
            self.total = len(cast("Mapping[Any, Any]", pairs))
            pairs = cast("Mapping[Any, Any]", pairs).items()
        self._pairs = pairs
        self.is_read_once = isinstance(pairs, Iterator)

    def rows(self) -> Iterator[SourceRows]:
        remaining, first = iter(self._pairs), 0
        while some := list[Any](itertools.islice(remaining, PAIRS_AT_ONCE)):
            for place, pair in enumerate(some):
                if not _is_pair(pair):
                    raise InputError("a row is a pair of a key and a value", row=first + place, got=repr(pair)[:80])
            keys, values = zip(*some, strict=True)
            yield Pairs(first, keys, values)
            first += len(some)


def source_of(given: Any, key: str | Sequence[str]) -> Source:
    """The source that the user gave. Raises `InputError` for what is none."""
    if isinstance(given, Source):
        return given
    if isinstance(given, (str, os.PathLike)) or _is_frame(given) or _is_arrow(given):
        return cast("Source", _arrow().arrow_source(given, key))
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise InputError(
            "a source must be an Arrow table or reader, the path of Parquet, or an iterable of pairs",
            given=type(given).__name__,
        )
    return PairSource(cast("Iterable[Any]", given))


def _is_pair(found: object) -> bool:
    return type(found) is tuple and len(cast("tuple[Any, ...]", found)) == _PAIR


def _is_frame(given: Any) -> bool:
    """True for a frame of Spark, of either kind: pyspark itself is not imported."""
    return hasattr(given, "mapInArrow") and hasattr(given, "toLocalIterator")


def _is_arrow(given: Any) -> bool:
    return hasattr(given, "__arrow_c_stream__") or hasattr(given, "__arrow_c_array__")


def _arrow() -> Any:
    """The module of sources in Arrow, which needs an extra."""
    return importlib.import_module("statebackend._upkeep.seeding.arrow_sources")
