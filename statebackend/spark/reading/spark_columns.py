"""The columns of a state as Spark's own state reader has them, made of the library's own batches.

    value, reducing, aggregating, columnar    key, value, partition_id
    list                                      key, list_element, partition_id       not flattened: list_value
    map                                       key, user_map_key, user_map_value, partition_id             map_value
    timers                                    key, expiration_timestamp_ms, partition_id
    operator                                  value
    the change feed of any of these           batch_id, change_type, ... [old_value]

Keys, values, elements and entry keys are structs: what is none is a struct of one field, `value`, which is how Spark
stores it. A map that is a list of entries, since its keys may be none, has them as structs of `key` and `value`; these
keys are always structs of one field. `partition_id` is the key group. A feed that begins by a checkpoint has
`checkpoint_id` for `batch_id`.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas import types
from pyspark.sql.types import StructField, StructType

from statebackend._reading.changed import BATCH_ID, CHANGE_TYPE, CHECKPOINT_ID, DELETE, OLD_VALUE
from statebackend._reading.rows.layouts import KEY, KEY_GROUP, VALUE
from statebackend._state.declared import COLUMNAR
from statebackend._state.kinds import list_state, map_state
from statebackend._state.time import timers
from statebackend.errors import InputError, KeyTypeError

_pa: Any = pa  # it ships no types
_pc: Any = pc
_spark: Any = types

PARTITION_ID: Final = "partition_id"
_MS: Final = 1000


class SparkColumns:
    """Turns batches of a state of `kind` into batches with Spark's columns. `names`: of the parts of the key."""

    def __init__(self, kind: str, *, flatten: bool, names: Sequence[str] | None, by_batch: bool | None) -> None:
        """`by_batch`: the first column of a feed is the batch's id, or else the checkpoint's; `None`: it is no feed."""
        self._kind = kind
        self._flatten = flatten
        self._names = names
        self._id = {None: None, True: BATCH_ID, False: CHECKPOINT_ID}[by_batch]

    def schema(self, own: Any, *, old_values: bool) -> StructType:
        """Spark's schema, where the state's own batches have this one. Raises `InputError` for unfit names of keys."""
        made = self._made(_empty(own if self._id is None else _with_changes(own, self._kind, old_values=old_values)))
        return StructType([StructField(name, _spark_type(array.type)) for name, array in made.items()])

    def batch(self, own: Any, schema: StructType) -> Any:
        """The batch with the columns of Spark's `schema`. Raises `KeyTypeError` if its keys are of another type."""
        made = self._made([own])
        arrays: list[Any] = []
        for field in schema.fields:
            if field.name not in made:
                raise InputError(f"there is no column of that name; there are {', '.join(made)}", column=field.name)
            found, type_ = made[field.name], arrow_type(field.dataType)
            if field.name == KEY and _spark_type(found.type) != field.dataType:
                raise KeyTypeError(
                    "the state has keys of several types, or had none when the query was planned: ask for them as text"
                    " by keysAsJson, or give the schema",
                    planned=field.dataType.simpleString(),
                    found=_spark_type(found.type).simpleString(),
                )
            arrays.append(found if found.type == type_ else _cast(found, type_))
        fields = [_pa.field(field.name, each.type, field.nullable) for field, each in zip(schema, arrays, strict=True)]
        return _pa.RecordBatch.from_arrays(arrays, schema=_pa.schema(fields))

    def _made(self, batches: Sequence[Any]) -> Mapping[str, Any]:
        (own,) = batches
        if self._kind.startswith("operator"):
            return {VALUE: _struct_of(own.column(VALUE))}
        own, shown = self._values(own)
        head = {} if self._id is None else {self._id: own.column(self._id), CHANGE_TYPE: own.column(CHANGE_TYPE)}
        tail = {OLD_VALUE: _struct_of(own.column(OLD_VALUE))} if OLD_VALUE in own.schema.names else {}
        return {**head, KEY: self._key(own.column(KEY)), **shown, PARTITION_ID: own.column(KEY_GROUP), **tail}

    def _key(self, key: Any) -> Any:
        found = _struct_of(key)
        if self._names is None:
            return found
        if len(self._names) != found.type.num_fields:
            raise InputError("keyColumns has another number of names than the key has parts", key=str(key.type))
        return _pa.StructArray.from_arrays(found.flatten(), names=list(self._names))

    def _values(self, own: Any) -> tuple[Any, Mapping[str, Any]]:
        """The rows, one for each element if these are flattened, and the columns of their values."""
        if self._kind == COLUMNAR:
            return own, {VALUE: self._columns(own)}
        value = own.column(VALUE)
        if self._kind == timers.KIND:
            own, times = _flattened(own, value)
            return own, {"expiration_timestamp_ms": _pc.round(_pc.multiply(times, _MS)).cast(_pa.int64())}
        if self._kind == list_state.KIND:
            return _list(own, value, flatten=self._flatten)
        if self._kind == map_state.KIND:
            return _map(own, value, flatten=self._flatten)
        return own, {VALUE: _struct_of(value)}

    def _columns(self, own: Any) -> Any:
        known = {KEY, KEY_GROUP, CHECKPOINT_ID, BATCH_ID, CHANGE_TYPE, OLD_VALUE} if self._id else {KEY, KEY_GROUP}
        places = [place for place, name in enumerate(own.schema.names) if name not in known]
        names = [own.schema.names[place].removeprefix(f"{VALUE}.") for place in places]
        gone = _pc.equal(own.column(CHANGE_TYPE), DELETE) if self._id else None
        arrays = [own.column(place) for place in places]
        return _pa.StructArray.from_arrays(arrays, names=names, mask=gone)


def arrow_type(type_: Any) -> Any:
    """The Arrow type in which Spark expects a column: a time in UTC has that as its zone."""
    has_zone = "timezone" in inspect.signature(_spark.to_arrow_type).parameters
    return _spark.to_arrow_type(type_, timezone="UTC") if has_zone else _spark.to_arrow_type(type_)


def _with_changes(own: Any, kind: str, *, old_values: bool) -> Any:
    """The schema of the feed's batches."""
    head = [(CHECKPOINT_ID, _pa.int64()), (BATCH_ID, _pa.int64()), (CHANGE_TYPE, _pa.string())]
    values = [field for field in own if field.name not in {KEY, KEY_GROUP}]
    old = (OLD_VALUE, _pa.struct(values) if kind == COLUMNAR else values[0].type)
    return _pa.schema([*(_pa.field(*each) for each in head), *own, *([_pa.field(*old)] if old_values else [])])


def _list(own: Any, value: Any, *, flatten: bool) -> tuple[Any, Mapping[str, Any]]:
    if not flatten:
        return own, {"list_value": _with_items(value, _struct_of(value.values))}
    own, found = _flattened(own, value)
    return own, {"list_element": _struct_of(found)}


def _map(own: Any, value: Any, *, flatten: bool) -> tuple[Any, Mapping[str, Any]]:
    is_map = _pa.types.is_map(value.type)
    keys, items = (value.keys, value.items) if is_map else value.values.flatten()
    # A key that may be none is the field of a struct in any case: that itself is null where no entry is meant.
    keys = _struct_of(keys) if is_map else _pa.StructArray.from_arrays([keys], names=[VALUE])
    if is_map and not flatten:
        return own, {"map_value": _pa.MapArray.from_arrays(value.offsets, keys, _struct_of(items), mask=_nulls(value))}
    entries = _with_items(value, _pa.StructArray.from_arrays([keys, _struct_of(items)], names=["key", "value"]))
    if not flatten:
        return own, {"map_value": entries}
    own, found = _flattened(own, entries)
    keys, items = found.flatten()
    return own, {"user_map_key": keys, "user_map_value": items}


def _empty(schema: Any) -> list[Any]:
    return [_pa.RecordBatch.from_arrays([_pa.array([], field.type) for field in schema], schema=schema)]


def _flattened(own: Any, lists: Any) -> tuple[Any, Any]:
    """A row for each item, and the items; a row with null for each list that is null."""
    lists = _pc.if_else(_pc.is_null(lists), _pa.scalar([None], lists.type), lists) if lists.null_count else lists
    return own.take(_pc.list_parent_indices(lists)), _pc.list_flatten(lists)


def _with_items(lists: Any, items: Any) -> Any:
    return _pa.ListArray.from_arrays(lists.offsets, items, mask=_nulls(lists))


def _nulls(array: Any) -> Any:
    return _pc.is_null(array) if array.null_count else None


def _struct_of(array: Any) -> Any:
    """The array if it is one of structs, else one of structs with it as their `value`; null where it is null."""
    if _pa.types.is_struct(array.type):
        return array
    return _pa.StructArray.from_arrays([array], names=[VALUE], mask=_nulls(array))


def _spark_type(type_: Any) -> Any:
    return _spark.from_arrow_type(_fitting(type_), prefer_timestamp_ntz=True)  # Spark 4.3's default, not 4.0's


def _fitting(type_: Any) -> Any:
    """The type in which Spark takes values of this type, on every release."""
    if _pa.types.is_struct(type_):
        return _pa.struct([(field.name, _fitting(field.type)) for field in type_])
    if _pa.types.is_map(type_):
        return _pa.map_(_fitting(type_.key_type), _fitting(type_.item_type))
    if _pa.types.is_list(type_) or _pa.types.is_large_list(type_):
        return _pa.list_(_fitting(type_.value_type))
    if _pa.types.is_timestamp(type_):
        return _pa.timestamp("us", tz=type_.tz)
    for is_such, fitting in _FITTING:
        if is_such(type_):
            return fitting
    return type_


_FITTING: Final[Sequence[tuple[Any, Any]]] = (
    (_pa.types.is_uint64, _pa.decimal128(20, 0)),
    (_pa.types.is_uint32, _pa.int64()),
    (_pa.types.is_uint16, _pa.int32()),
    (_pa.types.is_uint8, _pa.int16()),
    (_pa.types.is_float16, _pa.float32()),
    (_pa.types.is_time, _pa.string()),
    (_pa.types.is_date, _pa.date32()),
    (_pa.types.is_duration, _pa.duration("us")),
    (_pa.types.is_large_string, _pa.string()),
    (_pa.types.is_large_binary, _pa.binary()),
)


def _cast(array: Any, type_: Any) -> Any:
    """The array in Spark's own type: nested ones part by part, which may differ in the names of their items.

    Fields go by their names: a record may have got others, at other places, since the query was planned.
    """
    if _pa.types.is_struct(type_):
        parts = [_cast(_field(array, field.name), field.type) for field in type_]
        return _pa.StructArray.from_arrays(parts, fields=list(type_), mask=_nulls(array))
    if _pa.types.is_map(type_):
        keys, items = _cast(array.keys, type_.key_type), _cast(array.items, type_.item_type)
        return _pa.MapArray.from_arrays(array.offsets, keys, items, type=type_, mask=_nulls(array))
    if _pa.types.is_list(type_):
        items = _cast(array.values, type_.value_type)
        return _pa.ListArray.from_arrays(array.offsets, items, type=type_, mask=_nulls(array))
    try:
        return array.cast(type_)
    except (ValueError, TypeError, NotImplementedError) as error:  # pyarrow's errors are some of these
        raise InputError(
            f"the values do not fit the column: the type of the state may have changed since the query was planned,"
            f" so start it again: {error}",
            type=str(array.type),
            planned=str(type_),
        ) from error


def _field(array: Any, name: str) -> Any:
    if (place := array.type.get_field_index(name)) < 0:
        raise InputError(
            "the values have no such field: the type of the state may have changed since the query was planned, so"
            " start it again, to have the fields that there are now",
            field=name,
            there_are=[field.name for field in array.type],
        )
    return array.field(place)
