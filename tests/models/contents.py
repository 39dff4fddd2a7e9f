"""What every kind of state should hold, in plain Python: the model that a backend is compared with.

Each method takes pairs of a key and something, in order, as the method of that name of `kinds.Kinds` does.
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import statebackend as sb
from statebackend._state.kinds.operator_state import Mode

TTL_S = 5.0

Pairs = Sequence[tuple[sb.Key, Any]]


class Written(NamedTuple):
    """What a state with a time-to-live holds, and when it was written."""

    value: Any
    at: float

    def lives(self, now: float) -> bool:
        return now < self.at + TTL_S


class Contents:
    """The state of a whole job, whoever owns which key. Each attribute is a mapping from key."""

    def __init__(self) -> None:
        self.values: dict[sb.Key, Any] = {}
        self.counts: dict[sb.Key, int] = {}
        self.lists: dict[sb.Key, list[int]] = {}
        self.maps: dict[sb.Key, dict[str, int]] = {}
        self.totals: dict[sb.Key, int] = {}
        self.spreads: dict[sb.Key, list[int]] = {}
        self.timers: dict[sb.Key, set[float]] = {}
        self.alarms: dict[sb.Key, set[float]] = {}
        self.rung: dict[sb.Key, int] = {}
        self.recent: dict[sb.Key, Written] = {}
        self.recent_lists: dict[sb.Key, list[Written]] = {}
        self.recent_maps: dict[sb.Key, dict[str, Written]] = {}
        self.recent_totals: dict[sb.Key, Written] = {}
        self.looked_at: dict[sb.Key, Written] = {}
        self.rows: dict[sb.Key, dict[str, Any]] = {}
        self.recent_rows: dict[sb.Key, Written] = {}

    def copy(self) -> Self:
        return copy.deepcopy(self)

    def take_over(self, other: Self, is_theirs: Callable[[sb.Key], bool]) -> None:
        """Hold of the keys that are theirs what `other` holds, and of the rest what is here."""
        for name, mine in vars(self).items():
            theirs = copy.deepcopy(vars(other)[name])
            kept = {key: found for key, found in mine.items() if not is_theirs(key)}
            setattr(self, name, kept | {key: found for key, found in theirs.items() if is_theirs(key)})

    def visible(self, now: float) -> dict[str, dict[sb.Key, Any]]:
        """All that can be read at `now`, by the name of the state. Of `looked_at`, which keys there are."""
        lists = {key: [each.value for each in found if each.lives(now)] for key, found in self.recent_lists.items()}
        maps = {
            key: {name: each.value for name, each in found.items() if each.lives(now)}
            for key, found in self.recent_maps.items()
        }
        return {
            "values": dict(self.values),
            "counts": dict(self.counts),
            "lists": _not_empty(self.lists),
            "maps": _not_empty(self.maps),
            "totals": dict(self.totals),
            "spreads": {key: max(found) - min(found) for key, found in self.spreads.items()},
            "timers": {key: tuple(sorted(found)) for key, found in self.timers.items() if found},
            "alarms": {key: tuple(sorted(found)) for key, found in self.alarms.items() if found},
            "rung": dict(self.rung),
            "recent": _living(self.recent, now),
            "recent_lists": _not_empty(lists),
            "recent_maps": _not_empty(maps),
            "recent_totals": _living(self.recent_totals, now),
            "looked_at": dict.fromkeys(_living(self.looked_at, now)),
            "rows": {key: dict(row) for key, row in self.rows.items()},
            "recent_rows": _living(self.recent_rows, now),
        }

    # ---------------------------------------------------------------------------------- values, lists, maps

    def put(self, pairs: Pairs, now: float) -> None:
        self.values.update(pairs)

    put_many = put

    def pop(self, pairs: Pairs, now: float) -> None:
        for key, _ in pairs:
            self.values.pop(key, None)

    def count(self, pairs: Pairs, now: float) -> None:
        for key, number in pairs:
            self.counts[key] = self.counts.get(key, 0) + number

    def append(self, pairs: Pairs, now: float) -> None:
        for key, number in pairs:
            self.lists.setdefault(key, []).append(number)

    append_many = append

    def extend(self, pairs: Pairs, now: float) -> None:
        for key, numbers in pairs:
            self.lists.setdefault(key, []).extend(numbers)

    extend_many = extend

    def replace_list(self, pairs: Pairs, now: float) -> None:
        for key, numbers in pairs:
            self.lists[key] = list(numbers)

    replace_lists = replace_list

    def clear_list(self, pairs: Pairs, now: float) -> None:
        for key, _ in pairs:
            self.lists.pop(key, None)

    def put_entry(self, pairs: Pairs, now: float) -> None:
        for key, (name, number) in pairs:
            self.maps.setdefault(key, {})[name] = number

    def pop_entry(self, pairs: Pairs, now: float) -> None:
        for key, (name, _) in pairs:
            self.maps.get(key, {}).pop(name, None)

    def update_maps(self, pairs: Pairs, now: float) -> None:
        for key, entries in pairs:
            self.maps.setdefault(key, {}).update(entries)

    def replace_map(self, pairs: Pairs, now: float) -> None:
        for key, entries in pairs:
            self.maps[key] = dict(entries)

    replace_maps = replace_map

    def clear_map(self, pairs: Pairs, now: float) -> None:
        for key, _ in pairs:
            self.maps.pop(key, None)

    # ---------------------------------------------------------------------------------- what is added up

    def add(self, pairs: Pairs, now: float) -> None:
        for key, number in pairs:
            self.totals[key] = self.totals.get(key, 0) + number
            self.spreads.setdefault(key, []).append(number)

    add_many = add

    def merge(self, pairs: Pairs, now: float) -> None:
        """Each pair is a key and another one, of the same owner."""
        for key, other in pairs:
            if key != other and other in self.spreads:
                self.spreads[key] = self.spreads.get(key, []) + self.spreads.pop(other)

    def forget(self, pairs: Pairs, now: float) -> None:
        for key, _ in pairs:
            self.totals.pop(key, None)
            self.spreads.pop(key, None)

    # ---------------------------------------------------------------------------------- timers

    def register(self, pairs: Pairs, now: float) -> None:
        for key, at in pairs:
            self.timers.setdefault(key, set()).add(float(at))

    register_many = register

    def delete_timer(self, pairs: Pairs, now: float) -> None:
        for key, at in pairs:
            self.timers.get(key, set()).discard(float(at))

    def fire(self, until: float) -> set[tuple[float, sb.Key]]:
        """What is due, and gone."""
        fired = {(at, key) for key, times in self.timers.items() for at in times if at <= until}
        for at, key in fired:
            self.timers[key].discard(at)
        return fired

    def set_alarm(self, pairs: Pairs, now: float) -> None:
        for key, after in pairs:
            self.alarms.setdefault(key, set()).add(now + after)

    def ring(self, now: float) -> set[tuple[float, sb.Key]]:
        """What is due by the job's clock: each alarm once."""
        rung = {(at, key) for key, times in self.alarms.items() for at in times if at <= now}
        for at, key in rung:
            self.alarms[key].discard(at)
            self.rung[key] = self.rung.get(key, 0) + 1
        return rung

    # ---------------------------------------------------------------------------------- with a time-to-live

    def write_recent(self, pairs: Pairs, now: float) -> None:
        """To every state with a time-to-live."""
        for key, (name, number) in pairs:
            written = Written(number, now)
            self.recent[key] = self.looked_at[key] = written
            self.recent_lists.setdefault(key, []).append(written)
            self.recent_maps.setdefault(key, {})[name] = written
            total = self.recent_totals.get(key)
            before = total.value if total is not None and total.lives(now) else 0
            self.recent_totals[key] = Written(before + number, now)

    def forget_recent(self, pairs: Pairs, now: float) -> None:
        for key, _ in pairs:
            for found in (self.recent, self.recent_lists, self.recent_maps):
                found.pop(key, None)  # type: ignore[attr-defined]

    def look(self, pairs: Pairs, now: float) -> None:
        for key, _ in pairs:
            found = self.looked_at.get(key)
            if found is not None and found.lives(now):
                self.looked_at[key] = Written(found.value, now)

    # ---------------------------------------------------------------------------------- columns

    def merge_rows(self, pairs: Pairs, now: float) -> None:
        for key, number in of_text(pairs):
            self._change_row(key, now, lambda row, by=number: _added(row, by))

    def scatter_rows(self, pairs: Pairs, now: float) -> None:
        for key, number in of_text(pairs):
            self._change_row(key, now, lambda row, to=number: row | {"total": to})

    def put_row(self, pairs: Pairs, now: float) -> None:
        for key, number in of_text(pairs):
            self._change_row(key, now, lambda _, to=number: {"n": to, "total": None, "name": str(to)})

    def _change_row(self, key: sb.Key, now: float, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        empty = {"n": None, "total": None, "name": None}
        self.rows[key] = change(self.rows.get(key, empty))
        found = self.recent_rows.get(key)
        self.recent_rows[key] = Written(change(found.value if found is not None and found.lives(now) else empty), now)

    def drop_rows(self, pairs: Pairs, now: float) -> None:
        for key, _ in of_text(pairs):
            self.rows.pop(key, None)
            self.recent_rows.pop(key, None)

    def clear(self, name: str) -> None:
        """Remove every key of a state."""
        vars(self)[name].clear()


def of_text(pairs: Pairs) -> Pairs:
    """Those whose key is text, as a columnar state wants them."""
    return [(key, argument) for key, argument in pairs if isinstance(key, str)]


def _added(row: dict[str, Any], number: int) -> dict[str, Any]:
    return row | {"n": (row["n"] or 0) + 1, "total": (row["total"] or 0) + number}


def _living(found: Mapping[sb.Key, Written], now: float) -> dict[sb.Key, Any]:
    return {key: each.value for key, each in found.items() if each.lives(now)}


def _not_empty(found: Mapping[sb.Key, Any]) -> dict[sb.Key, Any]:
    return {key: copy.copy(each) for key, each in found.items() if each}


# -------------------------------------------------------------------------------------------------- operator state

OPERATOR_STATES: Mapping[str, Mode] = {
    "offsets": "split",
    "shards": "split",
    "marks": "union",
    "rules": "broadcast",
}
"""In the order in which they are declared, which is that of their ids."""

Report = Mapping[str, Sequence[int]]
"""What one owner has of each operator state, of those that it knows."""


def shares(reports: Sequence[Report], owners: int) -> list[dict[str, list[int]]]:
    """What each of the new owners is to have of what the old ones reported, in the order of their key groups."""
    new: list[dict[str, list[int]]] = [{} for _ in range(owners)]
    begin = 0  # the owner with whom the dealing out of a state begins
    for name, mode in OPERATOR_STATES.items():
        told = [list(report[name]) for report in reports if name in report]
        everything = [each for part in told for each in part]
        if not told:
            continue
        if mode == "union":
            dealt: Iterable[list[int] | None] = [list(everything) for _ in new]
        elif len(reports) == owners and (mode == "split" or len(told) == owners):
            dealt = [None if name not in report else list(report[name]) for report in reports]
        elif mode == "broadcast":
            dealt = [list(told[number % len(told)]) for number in range(owners)]
        else:
            sizes = [len(everything) // owners + (turn < len(everything) % owners) for turn in range(owners)]
            runs = [[everything.pop(0) for _ in range(size)] for size in sizes]
            surplus = sum(map(len, runs)) % owners
            dealt = [runs[(number - begin) % owners] for number in range(owners)]
            begin = (begin + surplus) % owners
        for share, found in zip(new, dealt, strict=True):
            if found is not None:
                share[name] = found
    return new
