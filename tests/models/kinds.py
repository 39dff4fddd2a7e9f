"""Every kind of state, declared on a backend; what can be done to it, by every way there is, and what can be read."""

import operator
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import pyarrow as pa

import statebackend as sb
from tests.aggregates import Spread
from tests.models.contents import OPERATOR_STATES, TTL_S, Pairs, of_text
from tests.models.invariants import Timed, assert_every_way_agrees, assert_in_turn, assert_popped

Value = int | str | None

KEYS: Sequence[sb.Key] = (0, -(2**63), 7, "", "a", "ü", "N14228", b"", b"a", ("a",), (7, b"a"), ("a", (7, "b")))
VALUES: Sequence[Value] = (None, 0, -1, 2**63 - 1, -(2**63), "", "ü")
NAMES = ("", "x", "y")

ROW = pa.schema({"n": pa.int64(), "total": pa.int64(), "name": pa.string()})
HOW: Any = {"n": "count", "total": ("sum", "v")}

Draw = Callable[[Random], Any]


def number(chance: Random) -> int:
    return chance.randint(-3, 3)


def several(chance: Random) -> list[int]:
    return [number(chance) for _ in range(chance.randrange(4))]


def entry(chance: Random) -> tuple[str, int]:
    return chance.choice(NAMES), number(chance)


def entries(chance: Random) -> dict[str, int]:
    return dict(entry(chance) for _ in range(chance.randrange(4)))


def time(chance: Random) -> int:
    return chance.randrange(20)


def nothing(chance: Random) -> None:
    """The key says it all."""


OPERATIONS: Mapping[str, Draw] = {
    "put": lambda chance: chance.choice(VALUES),
    "put_many": number,
    "pop": nothing,
    "count": number,
    "append": number,
    "append_many": number,
    "extend": several,
    "extend_many": several,
    "replace_list": several,
    "replace_lists": several,
    "clear_list": nothing,
    "put_entry": entry,
    "pop_entry": entry,
    "update_maps": entries,
    "replace_map": entries,
    "replace_maps": entries,
    "clear_map": nothing,
    "add": number,
    "add_many": number,
    "merge": lambda chance: chance.choice(KEYS),
    "forget": nothing,
    "register": time,
    "register_many": time,
    "delete_timer": time,
    "set_alarm": lambda chance: chance.randrange(6),
    "write_recent": entry,
    "forget_recent": nothing,
    "look": nothing,
    "merge_rows": number,
    "scatter_rows": number,
    "put_row": number,
    "drop_rows": nothing,
}
"""What may be done to several keys, and with what to each."""

CLEARED = (
    *("values", "counts", "lists", "maps", "totals", "spreads", "timers", "recent", "recent_lists", "recent_maps"),
    *("alarms", "rows", "recent_rows"),
)
"""States that may be cleared as a whole."""


def draw_operation(chance: Random) -> tuple[str, Pairs]:
    """An operation, and its pairs of a key and something."""
    name = chance.choice([*OPERATIONS])
    return name, [(chance.choice(KEYS), OPERATIONS[name](chance)) for _ in range(chance.randint(1, 4))]


class Kinds:
    """The states of one owner. Its methods are those of `contents.Contents`."""

    def __init__(self, backend: sb.StateBackend, now: Callable[[], float]) -> None:
        self._backend, self._now = backend, now
        ttl = sb.TimeToLive(TTL_S)  # by the job's clock; the others by a function
        self.values: sb.ValueState[Value] = backend.value_state("values", Value)  # type: ignore[arg-type]
        self.counts = backend.value_state("counts", int, default=0)
        self.lists = backend.list_state("lists", int)
        self.maps = backend.map_state("maps", str, int)
        self.totals = backend.reducing_state("totals", int, operator.add)
        self.spreads = backend.aggregating_state("spreads", Spread())
        self.timers = backend.timers("timers", "event")  # the job's clock is that of its batches
        self.alarms = backend.timers("alarms", "processing")  # these go by it
        self.rung = backend.value_state("rung", int, default=0)
        self.recent = backend.value_state("recent", int, ttl=ttl)
        self.recent_lists = backend.list_state("recent_lists", int, ttl=ttl)
        self.recent_maps = backend.map_state("recent_maps", str, int, ttl=ttl)
        self.recent_totals = backend.reducing_state("recent_totals", int, operator.add, ttl=sb.TimeToLive(TTL_S, now))
        self.looked_at = backend.value_state("looked_at", int, ttl=sb.TimeToLive(TTL_S, now, on_read=True))
        self.rows = backend.columnar_state("rows", ROW, key=pa.string())
        self.recent_rows = backend.columnar_state("recent_rows", ROW, key=pa.string(), ttl=ttl)
        self.operator = {name: backend.operator_state(name, int, mode) for name, mode in OPERATOR_STATES.items()}

    def visible(self) -> dict[str, dict[sb.Key, Any]]:
        """All that can be read, by more than one way to read it."""
        for rows in (self.rows, self.recent_rows):
            found = rows.to_arrow()
            assert_every_way_agrees((len(rows), found.num_rows, len(set(rows))), rows.name)
            gathered = rows.rows(found["key"]).gather()
            assert_every_way_agrees((gathered.to_pydict(), found.drop_columns("key").to_pydict()), rows.name)
        for state in (self.values, self.lists, self.maps, self.totals, self.spreads, self.recent, self.recent_lists):
            keys = list(state)
            ways = (len(state), len(keys), len(state.get_many(keys)), sum(key in state for key in keys))
            assert_every_way_agrees(ways, state.name)
        return {
            "values": dict(self.values),
            "counts": dict(self.counts),
            "lists": {key: list(found) for key, found in self.lists.items()},
            "maps": {key: dict(found) for key, found in self.maps.items()},
            "totals": dict(self.totals),
            "spreads": dict(zip(self.spreads, self.spreads.get_many(self.spreads), strict=True)),
            "timers": {key: self.timers.registered(key) for key in self.timers},
            "alarms": {key: self.alarms.registered(key) for key in self.alarms},
            "rung": dict(self.rung),
            "recent": dict(self.recent),
            "recent_lists": dict(zip(self.recent_lists, self.recent_lists.get_many(self.recent_lists), strict=True)),
            "recent_maps": dict(zip(self.recent_maps, self.recent_maps.get_many(self.recent_maps), strict=True)),
            "recent_totals": dict(self.recent_totals),
            "looked_at": dict.fromkeys(self.looked_at),
            "rows": dict(self.rows),
            "recent_rows": dict(self.recent_rows),
        }

    def report(self) -> dict[str, list[int]]:
        """What there is of each operator state."""
        return {name: list(found) for name, found in self.operator.items()}

    # ---------------------------------------------------------------------------------- values, lists, maps

    def put(self, pairs: Pairs) -> None:
        for key, value in pairs:
            self.values[key] = value

    def put_many(self, pairs: Pairs) -> None:
        self.values.put_many(*_columns(pairs))

    def pop(self, pairs: Pairs) -> None:
        for key, _ in pairs:
            found = self.values.get(key)
            assert_popped(self.values.pop(key, None), found)

    def count(self, pairs: Pairs) -> None:
        self.counts.update_many(*_columns(pairs), operator.add)

    def append(self, pairs: Pairs) -> None:
        for key, number in pairs:
            self.lists[key].append(number)

    def append_many(self, pairs: Pairs) -> None:
        self.lists.append_many(*_columns(pairs))

    def extend(self, pairs: Pairs) -> None:
        for key, numbers in pairs:
            self.lists[key].extend(numbers)

    def extend_many(self, pairs: Pairs) -> None:
        self.lists.extend_many(*_columns(pairs))

    def replace_list(self, pairs: Pairs) -> None:
        for key, numbers in pairs:
            self.lists[key] = numbers

    def replace_lists(self, pairs: Pairs) -> None:
        self.lists.put_many(*_columns(pairs))

    def clear_list(self, pairs: Pairs) -> None:
        for key, _ in pairs:
            self.lists[key].clear()

    def put_entry(self, pairs: Pairs) -> None:
        for key, (name, number) in pairs:
            self.maps[key][name] = number

    def pop_entry(self, pairs: Pairs) -> None:
        for key, (name, _) in pairs:
            found = self.maps[key].get(name)
            assert_popped(self.maps[key].pop(name, None), found)

    def update_maps(self, pairs: Pairs) -> None:
        self.maps.update_many(*_columns(pairs))

    def replace_map(self, pairs: Pairs) -> None:
        for key, entries in pairs:
            self.maps[key] = entries

    def replace_maps(self, pairs: Pairs) -> None:
        self.maps.put_many(*_columns(pairs))

    def clear_map(self, pairs: Pairs) -> None:
        for key, _ in pairs:
            self.maps[key].clear()

    # ---------------------------------------------------------------------------------- what is added up

    def add(self, pairs: Pairs) -> None:
        for key, number in pairs:
            self.totals.add(key, number)
            self.spreads.add(key, number)

    def add_many(self, pairs: Pairs) -> None:
        self.totals.add_many(*_columns(pairs))
        self.spreads.add_many(*_columns(pairs))

    def merge(self, pairs: Pairs) -> None:
        for key, other in pairs:
            self.spreads.merge(key, [other])

    def forget(self, pairs: Pairs) -> None:
        for key, _ in pairs:
            if key in self.totals:
                del self.totals[key]
            if key in self.spreads:
                del self.spreads[key]

    # ---------------------------------------------------------------------------------- timers

    def register(self, pairs: Pairs) -> None:
        for key, at in pairs:
            self.timers.register(key, at)

    def register_many(self, pairs: Pairs) -> None:
        self.timers.register_many(*_columns(pairs))

    def delete_timer(self, pairs: Pairs) -> None:
        for key, at in pairs:
            self.timers.delete(key, at)

    def fire(self, until: float) -> set[Timed]:
        fired = list(self.timers.due(until))
        assert_in_turn(fired)
        return set(fired)

    def set_alarm(self, pairs: Pairs) -> None:
        for key, after in pairs:
            self.alarms.register(key, self._now() + after)

    @property
    def has_due_alarms(self) -> bool:
        return self._backend.has_due_timers

    def ring(self) -> set[Timed]:
        """Take what is due by the job's clock, and count it under its key."""
        rung = [(at, key) for at, key, _ in self._backend.due_timers()]
        assert_in_turn(rung)
        for _, key in rung:
            self.rung[key] += 1
        return set(rung)

    # ---------------------------------------------------------------------------------- with a time-to-live

    def write_recent(self, pairs: Pairs) -> None:
        for key, (name, number) in pairs:
            self.recent[key] = self.looked_at[key] = number
            self.recent_lists[key].append(number)
            self.recent_maps[key][name] = number
            self.recent_totals.add(key, number)

    def forget_recent(self, pairs: Pairs) -> None:
        for key, _ in pairs:
            self.recent.pop(key, None)
            self.recent_lists[key].clear()
            self.recent_maps[key].clear()

    def look(self, pairs: Pairs) -> None:
        for key, _ in pairs:
            self.looked_at.get(key)

    # ---------------------------------------------------------------------------------- columns

    def merge_rows(self, pairs: Pairs) -> None:
        keys, numbers = _columns(of_text(pairs))
        batch = pa.table({"k": pa.array(keys, pa.string()), "v": pa.array(numbers, pa.int64())})
        for state in (self.rows, self.recent_rows):
            changed = state.merge(batch, on="k", how=HOW)
            assert set(changed["k"].to_pylist()) == set(keys)

    def scatter_rows(self, pairs: Pairs) -> None:
        last = dict(of_text(pairs))
        for state in (self.rows, self.recent_rows):
            state.rows(list(last)).scatter({"total": list(last.values())})

    def put_row(self, pairs: Pairs) -> None:
        for key, number in of_text(pairs):
            self.rows[key] = self.recent_rows[key] = {"n": number, "name": str(number)}

    def drop_rows(self, pairs: Pairs) -> None:
        for state in (self.rows, self.recent_rows):
            state.rows([key for key, _ in of_text(pairs)]).drop()

    def clear(self, name: str) -> None:
        getattr(self, name).clear()


def _columns(pairs: Pairs) -> tuple[list[sb.Key], list[Any]]:
    return [key for key, _ in pairs], [argument for _, argument in pairs]
