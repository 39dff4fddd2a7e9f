"""The types of columns that Delta and Iceberg have. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from statebackend._columns.arrow import DataType, Schema, pa
from statebackend.errors import MirrorSchemaError


def fitting(schema: Schema, place: str, *, has_times: bool = False) -> Schema:
    """The schema in types that Delta has, or with `has_times` Iceberg.

    Raises `MirrorSchemaError`, which names a column that it cannot hold.
    """
    fields: list[Any] = []
    for field in schema:
        type_ = lakehouse_type(field.type, has_times=has_times)
        if type_ is None:
            raise MirrorSchemaError(
                "the table has no column for that type: mirror another state, or cast the column",
                column=field.name,
                type=str(field.type),
                target=place,
            )
        fields.append(pa.field(field.name, type_))
    return pa.schema(fields)


def lakehouse_type(type_: DataType, *, has_times: bool) -> DataType | None:
    """The type without unsigned numbers that holds all such values; `None` if there is none."""
    types, found = pa.types, _WIDER.get(type_, type_)
    if types.is_nested(type_):
        return _nested(type_, has_times=has_times)
    if types.is_timestamp(type_):
        found = None if type_.unit == "ns" else pa.timestamp("us", type_.tz)
    elif types.is_time(type_):
        found = type_ if has_times and type_.unit == "us" else None
    elif types.is_duration(type_) or types.is_null(type_):
        found = None
    return found


def _nested(type_: DataType, *, has_times: bool) -> DataType | None:
    types = pa.types
    inner = [lakehouse_type(type_.field(place).type, has_times=has_times) for place in range(type_.num_fields)]
    if types.is_map(type_):
        inner = [lakehouse_type(each, has_times=has_times) for each in (type_.key_type, type_.item_type)]
    if any(each is None for each in inner):
        return None
    if types.is_struct(type_):
        return pa.struct([(field.name, each) for field, each in zip(type_, inner, strict=True)])
    if types.is_map(type_):
        return pa.map_(*inner)
    return pa.list_(inner[0]) if types.is_list(type_) else None


_WIDER: Final[Mapping[DataType, DataType]] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
}
