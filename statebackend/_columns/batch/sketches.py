"""How many distinct values a key has had, estimated from a sketch. The one door to `datasketches`.

A sketch (HyperLogLog of 2^12 registers, 4 bits each) is kept as its compact bytes, a format that the Apache
DataSketches libraries of all languages share. It has some 40 bytes at first, and 2 KiB at most. The error is 1.6 %.
"""

import importlib
from typing import Any, Final

import numpy as np

from statebackend._columns.arrow import array_from, pa
from statebackend._columns.batch.merge_sides import MergeSides
from statebackend._columns.batch.numbered_keys import column_in
from statebackend._columns.batch.vectors import Vector
from statebackend.errors import InputError, SettingsError, ValueDecodeError, needs_extra

_types: Any = pa.types

LOG2_REGISTERS: Final = 12
INSTEAD_OF_EMPTY: Final = "\0"
"""The text counted in place of the empty one, which the library leaves out. So the two count as one value."""


def check_sketches(schema: Any, name: str, sketch: str, column: str, source: Any) -> None:
    """Raise `InputError` unless the state's columns can hold an estimate and its sketch, and the type be counted."""
    _library()
    if not _types.is_integer(schema.field(name).type) or not _types.is_binary(schema.field(sketch).type):
        raise InputError(
            "a count of distinct values needs a column of integers, and one of binary for its sketch: declare them",
            column=name,
            type=str(schema.field(name).type),
            sketch=sketch,
            sketch_type=str(schema.field(sketch).type),
        )
    if not any(is_one(source) for is_one in (_types.is_signed_integer, _types.is_string, _types.is_large_string)):
        raise InputError(
            "distinct values are counted of text and signed integers: cast the column", column=column, type=str(source)
        )


def merged_sketches(name: str, sketch: str, column: str, sides: MergeSides) -> dict[str, Any]:
    """The new estimates and sketches. A Python call per row: 10 ms for 10,000."""
    library = _library()
    order, ends = sides.groups.by_key()
    values = column_in(sides.batch, column).take(array_from(order)).to_pylist()
    stored, counts = list[bytes](), list[int]()
    for number, found in enumerate(sides.old.column(sketch).to_pylist()):
        counter = library.hll_sketch(LOG2_REGISTERS, library.HLL_4) if found is None else _restored(library, found)
        for value in values[ends[number] : ends[number + 1]]:
            if value is not None:
                counter.update(INSTEAD_OF_EMPTY if value == "" else value)
        stored.append(counter.serialize_compact())
        counts.append(round(counter.get_estimate()))
    return {
        name: sides.stored(Vector(np.array(counts, np.int64)), name),
        sketch: pa.array(stored, sides.type_of(sketch)),
    }


def _restored(library: Any, found: bytes) -> Any:
    try:
        return library.hll_sketch.deserialize(found)
    except (ValueError, RuntimeError, IndexError) as error:
        raise ValueDecodeError(f"a stored sketch cannot be read: {error}", size_bytes=len(found)) from error


def _library() -> Any:
    try:
        return importlib.import_module("datasketches")  # on first use: it is optional
    except ImportError as error:
        raise SettingsError(needs_extra("counting distinct values", "sketches"), missing=error.name) from error
