"""Spark's reader of the library, without Spark: the state, and the change feed with old values.

The data source is called as Spark's Python workers call it: a schema, partitions, and the batches of each.
"""

import datetime as dt
from collections.abc import Iterator
from typing import Any

import statebackend as sb
from statebackend.errors import InputError
from statebackend.spark.reading.data_source import StateSource
from tests.programs.dictionaries import Dictionaries
from tests.programs.looking import Readers, WrongError, check, elements_in, entries_in, refused
from tests.programs.program import OPERATOR, Declared, Job
from tests.programs.values import TYPES, key_read, read_of, text_of


def rows_of(settings: sb.Settings, declared: Declared, **options: object) -> Iterator[dict[str, Any]]:
    """The rows of a query with these options, for a state that was registered with its upcasts."""
    migrate = {settings.job: {declared.name: TYPES[declared.type].upcasts}}
    registered: Any = type("Registered", (StateSource,), {"jobs": {settings.job: settings}, "migrate": migrate})
    given = {name: str(value) for name, value in options.items() if value is not None}
    source = registered({"job": settings.job, "stateVarName": declared.name, **given})
    schema = source.schema()
    reader = source.reader(schema)
    for partition in reader.partitions():
        for batch in reader.read(partition):
            yield from batch.to_pylist()


def look_in_spark(settings: sb.Settings, job: Job, held: Dictionaries) -> None:
    """Every state, as `spark.read` has it."""
    for declared in Readers(settings, job).known(held, job.states):
        options = {"flattenCollectionTypes": "false", "ttl": declared.ttl_s}
        rows = list(rows_of(settings, declared, **options))
        what = f"{declared.name} in Spark"
        if declared.kind in OPERATOR:
            check(
                what,
                elements_in(declared, (row["value"]["value"] for row in rows)),
                elements_in(declared, held.operator[declared.name]),
            )
        else:
            check(what, by_key(declared, rows), expected_in_spark(held, declared))


def by_key(declared: Declared, rows: list[dict[str, Any]]) -> dict[str, str]:
    """The values of rows, as texts, by the texts of their keys. Raises `WrongError` for a key that comes twice."""
    found: dict[str, Any] = {}
    for row in rows:
        key = text_of(row["key"])
        if declared.kind == "timers":
            found.setdefault(key, []).append(row["expiration_timestamp_ms"])
            continue
        if key in found:
            raise WrongError(f"{declared.name} has the key {key} twice in Spark")
        found[key] = value_in(declared, row)
    return {key: text_of(sorted(value) if declared.kind == "timers" else value) for key, value in found.items()}


def value_in(declared: Declared, row: dict[str, Any]) -> Any:
    match declared.kind:
        case "list":
            return row["list_value"]
        case "map":
            return None if row["map_value"] is None else entries_in(row["map_value"])
    return row["value"]


def expected_in_spark(held: Dictionaries, declared: Declared) -> dict[str, str]:
    return {text_of(key_struct(key)): text_of(in_spark(declared, found)) for key, found in held.rows(declared).items()}


def key_struct(key: Any) -> Any:
    read = key_read(key)
    return read if isinstance(read, dict) else {"value": read}


def in_spark(declared: Declared, found: Any) -> Any:
    match declared.kind:
        case "value" | "reducing":
            return struct_of(declared.type, found)
        case "aggregating":
            return {"_1": found[0], "_2": found[1]}
        case "list":
            return [struct_of(declared.type, each) for each in found]
        case "map":
            names = [struct_of(declared.names, cell.name) or {"value": None} for cell in found.values()]  # none is null
            values = [struct_of(declared.type, cell.value) for cell in found.values()]
            return entries_in(zip(names, values, strict=True))
        case "timers":
            return sorted(round(at * 1000) for at in found)
    return found


def struct_of(type_: str, value: Any) -> Any:
    """As Spark's state store has it: what is no struct is one with the one field `value`."""
    read = read_of(type_, value)
    if isinstance(read, dict) or read is None:
        return read
    return {"value": _plain_time(read)}


# ------------------------------------------------------------------------------------------------------ the change feed


def look_at_feed(
    settings: sb.Settings,
    job: Job,
    newest: Dictionaries,
    states: tuple[Dictionaries, Dictionaries],
    checkpoint_id: int,
    *,
    transformed: str | None,
) -> None:
    """What one commit has changed, with the old values: they lead from what was before to what is after it.

    A state that it has `transformed` has no feed there, and says so.
    Not for a state with a time-to-live: what has expired is dropped some time later.
    """
    before, after = states
    for declared in Readers(settings, job).known(newest, job.states):
        is_timed = declared.ttl_s is not None
        if declared.name not in before.known or declared.kind in (*OPERATOR, "timers") or is_timed:
            continue
        options = {
            "readChangeFeed": "true",
            "changeStartCheckpointId": checkpoint_id,
            "changeEndCheckpointId": checkpoint_id,
            "flattenCollectionTypes": "false",
            "oldValues": "true",
        }
        if declared.name == transformed:
            with refused(InputError):
                list(rows_of(settings, declared, **options))
            continue
        _check_changes(declared, list(rows_of(settings, declared, **options)), before, after)


def _check_changes(declared: Declared, rows: list[dict[str, Any]], before: Dictionaries, after: Dictionaries) -> None:
    was = {text_of(key_struct(key)): in_spark(declared, found) for key, found in before.rows(declared).items()}
    now = expected_in_spark(after, declared)
    is_many = declared.kind in ("list", "map")
    olds = {key: text_of(value) for key, value in was.items()}
    if is_many:  # as `read_state` has them
        olds = {
            text_of(key_struct(key)): text_of(old_of_many(declared, each))
            for key, each in before.rows(declared).items()
        }
    reached = dict(was)
    for row in rows:
        key = text_of(row["key"])
        old = row["old_value"]
        check(f"old value of {declared.name}", old_text(declared, old), olds.get(key, text_of(None)))
        match row["change_type"], declared.kind:
            case "update", "map":
                changed = dict(map(tuple, reached.get(key, [])))
                changed |= dict(map(tuple, value_in(declared, row)))
                reached[key] = sorted(map(list, changed.items()))
            case "delete", "map" if row["map_value"] is not None:
                gone = {name for name, _ in value_in(declared, row)}
                reached[key] = [each for each in reached.get(key, []) if each[0] not in gone]
            case "append", _:
                reached[key] = [*reached.get(key, []), *value_in(declared, row)]
            case "update", _:
                reached[key] = value_in(declared, row)
            case "delete", _:
                reached.pop(key, None)
    shown = {key: text_of(value) for key, value in reached.items() if value or not is_many}
    check(f"changes of {declared.name}", shown, now)


def old_of_many(declared: Declared, found: Any) -> Any:
    """As `read_state` has a list or a map, but for times of a day, which Spark has no type for."""
    if declared.kind == "list":
        return [_plain_time(read_of(declared.type, each)) for each in found]
    cells = (
        (_plain_time(read_of(declared.names, each.name)), read_of(declared.type, each.value)) for each in found.values()
    )
    return sorted([text_of(name), text_of(_plain_time(value))] for name, value in cells)


def old_text(declared: Declared, old: Any) -> str:
    if declared.kind in ("list", "map") and old is not None:
        old = entries_in(old["value"]) if declared.kind == "map" else old["value"]
    return text_of(old)


def _plain_time(value: Any) -> Any:
    return value.isoformat("microseconds") if isinstance(value, dt.time) else value
