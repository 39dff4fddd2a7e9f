"""Output rows as a table of `output_schema`, refused before they are committed if they do not fit."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import pyarrow as pa

from statebackend.errors import InputError

_pa: Any = pa  # it ships no types


def table_of_rows(rows: Sequence[Mapping[str, Any]], schema: Any) -> Any:
    """A `pyarrow.Table` of rows that must all have exactly the columns of the schema, in any order.

    Raises `InputError`.
    """
    names = set(cast("list[str]", schema.names))
    for row in rows:
        if not isinstance(cast("object", row), Mapping):
            raise InputError("an output row must be a mapping from columns to values", row=repr(row)[:80])
        if set(row) != names:
            raise InputError(
                "an output row must have exactly the columns of output_schema", row=row, expected=schema.names
            )
    try:
        columns = [_pa.array([row[field.name] for row in rows], type=field.type) for field in schema]
    except (_pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"an output row does not fit output_schema: {error}") from error
    return checked_nulls(_pa.table(columns, schema=schema))


def fitted(table: Any, schema: Any) -> Any:
    """The table with the columns of the schema, in its order and of its types. Raises `InputError`."""
    if sorted(table.column_names) != sorted(schema.names):
        raise InputError(
            "the output table must have exactly the columns of output_schema",
            columns=table.column_names,
            expected=schema.names,
        )
    try:
        found = table.select(schema.names).cast(schema)
    except (_pa.ArrowException, TypeError, ValueError) as error:
        raise InputError(f"the output table does not fit output_schema: {error}") from error
    return checked_nulls(found)


def has_rows(returned: object) -> bool:
    """True for a table of any library, and for whatever else one could iterate over, but for text."""
    return hasattr(returned, "__arrow_c_stream__") or (
        isinstance(returned, Iterable) and not isinstance(returned, str | bytes)
    )


def checked_nulls(table: Any) -> Any:
    """The table. Raises `InputError` for a null that its schema rules out, at any depth: Arrow itself lets it pass."""
    for field, column in zip(table.schema, table.columns, strict=True):
        for array in column.chunks:
            if (found := _forbidden_null(field, array)) is not None:
                raise InputError(
                    "output has a null where its schema says that there is none: put out a value, or declare the "
                    "field as nullable",
                    field=found,
                )
    return table


def _forbidden_null(field: Any, array: Any) -> str | None:
    """The name of the field at fault, behind those that it lies in."""
    if not field.nullable and array.null_count:
        return cast("str", field.name)
    types, type_ = _pa.types, field.type
    if types.is_struct(type_):
        inner = [*zip(type_, array.drop_null().flatten(), strict=True)]  # below a null struct anything may lie
    elif types.is_map(type_):
        present = array.drop_null()
        items = _pa.ListArray.from_arrays(present.offsets, present.items)  # a map itself cannot be flattened
        inner = [(type_.item_field, items.flatten())]
    elif types.is_nested(type_) and type_.num_fields == 1 and not types.is_union(type_):
        inner = [(type_.field(0), array.flatten())]
    else:
        return None
    found = (_forbidden_null(each, values) for each, values in inner)
    return next((f"{field.name}.{name}" for name in found if name is not None), None)
