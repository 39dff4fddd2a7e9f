"""Groups the rows of a batch by key, without sorting them: each row gets the number of its key.

Keys whose hashes differ are not the same, which is seen in no time. Where some are alike, Arrow's dictionary
encoding numbers the distinct keys in the order in which they first occur. With those numbers an aggregate is one pass
of numpy (`np.add.at`), a tenth of a millisecond for 50,000 rows, where a sort takes two.
"""

import functools
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from statebackend._codec.xxh64 import Hashes
from statebackend._columns.arrow import array_from, pa, values_of
from statebackend._columns.keys import HashedKeys
from statebackend.errors import InputError

Ints = npt.NDArray[np.int64]

SAMPLE: Final = 1024
"""Keys of which a batch with repeated keys usually has some twice, so that the others need not be hashed."""
SLOTS_PER_KEY: Final = 4
ROUNDS_MAX: Final = 16


class Grouped:
    """The distinct keys of a batch, in the order in which they first occur, and for each row the number of its key.

    `codes` is `None` where no key occurs twice: then row and key have the same number.
    """

    __slots__ = ("_num_rows", "_sorted", "codes", "hashed", "keys")

    def __init__(self, keys: Any, hashed: HashedKeys, codes: Ints | None, num_rows: int) -> None:
        self.keys: Final = keys
        self.hashed: Final = hashed
        self.codes: Final = codes
        self._num_rows = num_rows
        self._sorted: tuple[Ints, Ints] | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def counts(self) -> Ints:
        """The number of rows of each key."""
        if self.codes is None:
            return np.ones(len(self), np.int64)
        return np.bincount(self.codes, minlength=len(self)).astype(np.int64, copy=False)

    def last_rows(self, of: Ints | None = None) -> Ints:
        """For each key its last row, of all rows or of those numbered by `of`, ascending; -1 for a key without one."""
        found = np.full(len(self), -1, np.int64)
        rows = np.arange(self._num_rows) if of is None else of
        found[rows if self.codes is None else self.codes[rows]] = rows  # of equal indices the last one counts
        return found

    def first_rows(self, of: Ints | None = None) -> Ints:
        """As `last_rows`, for the first row of each key."""
        found = np.full(len(self), -1, np.int64)
        rows = (np.arange(self._num_rows) if of is None else of)[::-1]
        found[rows if self.codes is None else self.codes[rows]] = rows
        return found

    def by_key(self) -> tuple[Ints, Ints]:
        """The numbers of the rows, key after key, in order of arrival; and where each key begins, with the end last."""
        if self._sorted is None:
            order = np.arange(self._num_rows) if self.codes is None else np.argsort(self.codes, kind="stable")
            self._sorted = order, np.concatenate([np.zeros(1, np.int64), np.cumsum(self.counts())])
        return self._sorted


def column_in(batch: Any, name: str) -> Any:
    """The column of that name as one array, in a layout that Arrow can take rows of.

    Raises `InputError` unless there is exactly one.
    """
    if (found := batch.schema.names.count(name)) != 1:
        raise InputError(
            "the batch must have exactly one column of that name",
            column=name,
            found=found,
            known=batch.schema.names,
        )
    column = batch.column(name)
    if (type_ := _without_views(column.type)) != column.type:
        column = column.cast(type_)
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.nulls(0, column.type)])


def _without_views(type_: Any) -> Any:
    """The type, or that of the same values if it is one of views, also as the values of a dictionary."""
    if pa.types.is_dictionary(type_):
        return pa.dictionary(type_.index_type, _without_views(type_.value_type), type_.ordered)
    if pa.types.is_string_view(type_):
        return pa.large_string()
    return pa.large_binary() if pa.types.is_binary_view(type_) else type_


def grouped(keys: Any, hash_keys: Callable[[Any], HashedKeys]) -> Grouped:
    """The keys, an array without nulls, grouped. Takes 2.5 ms for 50,000 texts, 1.4 for numbers, less if all differ."""
    if _all_differ(hash_keys(keys.slice(0, SAMPLE)).hashes) and _all_differ((hashed := hash_keys(keys)).hashes):
        return Grouped(keys, hashed, None, len(keys))
    codes, distinct = _codes(keys)
    if len(distinct) == len(keys):
        return Grouped(keys, hash_keys(keys), None, len(keys))
    return Grouped(distinct, hash_keys(distinct), codes.astype(np.int64), len(keys))


def _all_differ(hashes: Hashes) -> bool:
    """True only if no hash is there twice. Those that meet in a slot are compared with the one that has it."""
    bits = max(1, SLOTS_PER_KEY * len(hashes)).bit_length()
    owners: npt.NDArray[np.int32] = np.empty(1 << bits, np.int32)
    for _ in range(ROUNDS_MAX):
        slots = (hashes >> np.uint64(64 - bits)).view(np.int64)
        numbers = np.arange(len(hashes), dtype=np.int32)
        owners[slots] = numbers
        found = owners[slots]
        lost = np.flatnonzero(found != numbers)
        if not len(lost):
            return True
        others, hashes = hashes[found[lost]], hashes[lost]
        if (others == hashes).any():
            return False
    return False


def _codes(keys: Any) -> tuple[npt.NDArray[Any], Any]:
    """For each key its number, and the distinct keys."""
    if not pa.types.is_struct(keys.type):
        encoded = keys.dictionary_encode()
        return values_of(encoded.indices), encoded.dictionary
    parts = [_codes(part)[0] for part in keys.flatten()]
    pairs = array_from(functools.reduce(_paired, parts)).dictionary_encode()
    codes = values_of(pairs.indices)
    first = np.empty(len(pairs.dictionary), np.int64)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    return codes, keys.take(array_from(first))


def _paired(codes: npt.NDArray[Any], others: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A number per pair of numbers. Encoded anew, so that it stays below the row count, whatever the column count."""
    width = int(others.max(initial=0)) + 1
    return values_of(array_from(codes.astype(np.int64) * width + others).dictionary_encode().indices)
