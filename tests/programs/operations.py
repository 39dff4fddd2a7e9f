"""What a program can do to a state: each operation of each kind on the library's states, and how a state is declared.

`dictionaries.py` has the same operations on plain dictionaries.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

import statebackend as sb
from statebackend.errors import InputError
from tests.programs.program import OPERATOR, Declared, Do, Job
from tests.programs.values import KEY_ARROW, TYPES


class Given(NamedTuple):
    """A state, a key, and what the operation is to do with them. `first`: the first name and value of their types."""

    state: Any
    key: Any
    name: Any
    value: Any
    first: tuple[Any, Any]
    declared: Declared
    number: int
    at_s: float


def _setdefault(on: Given) -> None:
    on.state.setdefault(on.key, on.value)


def _put(on: Given) -> None:
    on.state[on.key] = on.value


def _count(on: Given) -> None:
    on.state[on.key] = (on.state.get(on.key) or 0) % 1000 + 1


def _delete(on: Given) -> None:
    if on.key in on.state:
        del on.state[on.key]


def _clear(on: Given) -> None:
    on.state[on.key].clear()


def _replace_list(on: Given) -> None:
    on.state[on.key] = [on.value]


def _empty_list(on: Given) -> None:
    on.state[on.key] = []


def _put_entry(on: Given) -> None:
    on.state[on.key][on.name] = on.value


def _replace_map(on: Given) -> None:
    on.state[on.key] = {on.name: on.value}


def _write_again(on: Given) -> None:
    try:
        found = on.state.get_many([on.key])
    except InputError:  # no dict can hold names that Python takes for equal
        return
    on.state.put_many([on.key], found)


def _put_row(on: Given) -> None:
    on.state[on.key] = row_of(on.declared, on.number)


def _put_column(on: Given) -> None:
    column = column_of(on.declared, on.number)
    on.state[on.key] = {**on.state.get(on.key, {}), column: row_of(on.declared, on.number)[column]}


OPERATIONS: Mapping[str, Mapping[str, Callable[[Given], Any]]] = {
    "value": {
        "put": _put,
        "put many": lambda on: on.state.put_many([on.key, on.key], [on.first[1], on.value]),
        "default": _setdefault,
        "count": _count,
        "pop": lambda on: on.state.pop(on.key, None),
        "delete": _delete,
    },
    "list": {
        "append": lambda on: on.state[on.key].append(on.value),
        "extend": lambda on: on.state[on.key].extend([on.value, on.first[1], on.value]),
        "replace": _replace_list,
        "empty": _empty_list,
        "clear": _clear,
        "delete": _delete,
    },
    "map": {
        "put": _put_entry,
        "pop": lambda on: on.state[on.key].pop(on.name, None),
        "replace": _replace_map,
        "update": lambda on: on.state.update_many([on.key], [{on.name: on.value, on.first[0]: on.first[1]}]),
        "swap": _write_again,
        "clear": _clear,
        "delete": _delete,
    },
    "reducing": {
        "add": lambda on: on.state.add(on.key, on.value),
        "add many": lambda on: on.state.add_many([on.key, on.key], [on.first[1], on.value]),
        "delete": _delete,
    },
    "aggregating": {
        "add": lambda on: on.state.add(on.key, on.number),
        "add many": lambda on: on.state.add_many([on.key, on.key], [1, on.number]),
        "delete": _delete,
    },
    "columns": {"put": _put_row, "one": _put_column, "delete": _delete},
    "timers": {
        "register": lambda on: on.state.register(on.key, on.at_s),
        "delete": lambda on: on.state.delete(on.key, on.at_s),
    },
}
"""By the kind of the state."""


def act(state: Any, declared: Declared, key: sb.Key, do: Do, now_s: float) -> None:
    """Do it. `now_s`: the time from which a timer is counted."""
    values, names = TYPES[declared.type].values, TYPES[declared.names].values
    on = Given(
        state,
        key,
        names[do.name % len(names)],
        values[do.value % len(values)],
        (names[0], values[0]),
        declared,
        do.value,
        now_s + do.at_s,
    )
    OPERATIONS[declared.kind][do.op](on)


def change(state: Any, declared: Declared, key: sb.Key, now_s: float) -> None:
    """Change it in the plainest way of its kind: of timers, by one that is not there."""
    if declared.kind in OPERATOR:
        state.append(1)
    else:
        plainest = next(iter(OPERATIONS[declared.kind]))
        act(state, declared, key, Do(declared.name, plainest, 1, at_s=12_345.5), now_s)


def row_of(declared: Declared, number: int) -> dict[str, Any]:
    """A row of columns: of each type the value of that number, now and then a null."""
    return {
        name: None if (number + place) % 7 == 6 else values[(number + place) % len(values)]
        for place, name in enumerate(declared.columns)
        for values in [TYPES[name].values]
    }


def column_of(declared: Declared, number: int) -> str:
    """The column that an operation of this number is about."""
    return declared.columns[number % len(declared.columns)]


class Count:
    """How many values were added, and the last of them."""

    def create(self) -> tuple[int, int]:
        return 0, 0

    def add(self, accumulator: tuple[int, int], value: int) -> tuple[int, int]:
        return accumulator[0] + 1, value

    def result(self, accumulator: tuple[int, int]) -> list[int]:
        return list(accumulator)

    def merge(self, accumulator: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + other[0], other[1]


def newer(_old: Any, new: Any) -> Any:
    """Reduces to the value that was added last."""
    return new


def declare(backend: Any, declared: Declared, job: Job, keys: str) -> Any:
    """Declare the state as the job does, on a backend or in the context of a processor."""
    name, kind, type_ = declared.name, declared.kind, TYPES[declared.type]
    timed = {"ttl": job.ttl(declared)}
    evolving = timed | {"migrate": type_.upcasts}
    if kind == "value":
        default = type_.values[0] if declared.default else msgspec.UNSET
        return backend.value_state(name, type_.annotation, default=default, **evolving)
    if kind == "columns":
        schema = pa.schema([(column, TYPES[column].arrow) for column in declared.columns])
        return backend.columnar_state(name, schema, key=KEY_ARROW[keys], **timed)
    made: Mapping[str, Callable[[], Any]] = {
        "list": lambda: backend.list_state(name, type_.annotation, **evolving),
        "map": lambda: backend.map_state(name, TYPES[declared.names].annotation, type_.annotation, **evolving),
        "reducing": lambda: backend.reducing_state(name, type_.annotation, newer, **evolving),
        "aggregating": lambda: backend.aggregating_state(name, Count(), **timed),
        "timers": lambda: backend.timers(name),
    }
    return made[kind]() if kind in made else backend.operator_state(name, int, kind)
