"""What a job should hold, in plain dictionaries: `Do`s are done to them as `processors.py` does them to states.

Nothing here imports the library's states. A value is kept with the time at which it was written, if its state has a
time-to-live; what has expired is not there for anybody.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tests.programs.operations import column_of, row_of
from tests.programs.processors import LATER_S
from tests.programs.program import OPERATOR, Declared, Do, Job
from tests.programs.values import TYPES, evolved, text_of

NEVER = -math.inf
MISSING = object()


class Cell(NamedTuple):
    """A value and when it was written; `None`: it never expires. `name`: of an entry in a map."""

    value: Any
    at: float | None
    name: Any = None


class Dictionaries:
    """The state of a whole job. `keyed`: by state and key, a `Cell`, a list or a dict of them, or a set of times."""

    def __init__(self) -> None:
        self.keyed: dict[str, dict[Any, Any]] = {}
        self.operator: dict[str, list[int]] = {}
        self.known: dict[str, Declared] = {}
        """The states that a commit knows: as they were declared where it was made."""
        self.untimed: dict[str, float | None] = {}
        """Of states with a time-to-live: when that which has no time counts as written, if the clock had begun."""
        self.now = self.before = NEVER
        self.groups = 128

    def copy(self) -> "Dictionaries":
        found = Dictionaries()
        found.keyed = {
            name: {key: each if isinstance(each, Cell) else each.copy() for key, each in entries.items()}
            for name, entries in self.keyed.items()
        }
        found.operator = {name: list(elements) for name, elements in self.operator.items()}
        found.known, found.now, found.before = dict(self.known), self.now, self.before
        found.untimed = dict(self.untimed)
        found.groups = self.groups
        return found

    def commit(self, states: Iterable[Declared]) -> None:
        """The states are committed as they are declared now. From the first commit with a time-to-live on all age."""
        self.known |= {each.name: each for each in states}
        for each in states:
            if each.ttl_s is None:
                self.untimed.pop(each.name, None)
            elif self.untimed.get(each.name) is None:
                self.untimed[each.name] = None if self.now == NEVER else self.now

    # ------------------------------------------------------------------------------------------------------ one batch

    def declare(self, job: Job) -> None:
        for each in job.states:
            if each.kind in OPERATOR:
                self.operator.setdefault(each.name, [])
            else:
                self.keyed.setdefault(each.name, {})

    def move(self, to_s: float | None) -> None:
        """Move the clock for a batch; `None`: it has no time."""
        self.before = self.now
        if to_s is not None:
            self.now = max(self.now, to_s)

    def due(self, job: Job) -> list[tuple[float, Any, str]]:
        """The timers that are due, in their order. They are taken by `fire`."""
        names = [each.name for each in job.states if each.kind == "timers"]
        found = [
            (at, place, text_of(key), key, name)
            for place, name in enumerate(names)
            for key, times in self.keyed[name].items()
            for at in times
            if at <= self.now
        ]
        return [(at, key, name) for at, _, _, key, name in sorted(found, key=lambda each: each[:3])]

    def fire(self, job: Job) -> list[tuple[Any, str]]:
        """Fire what is due, each timer once; return what is seen for each key."""
        taken: set[tuple[float, str, str]] = set()
        seen: list[tuple[Any, str]] = []
        while due := [each for each in self.due(job) if (each[0], text_of(each[1]), each[2]) not in taken]:
            at, key, name = due[0]
            taken.add((at, text_of(key), name))
            seen.append((key, self._fire(at, key, name)))
        return seen

    def _fire(self, at: float, key: Any, name: str) -> str:
        times = self.keyed[name].setdefault(key, set())
        times.discard(at)
        match int(at) % 4:
            case 0 if at >= self.before:
                times.add(at)
            case 1:
                times.discard(at - 1)
            case 2:
                times.add(max(at + LATER_S, self.now))
        return f"timer {name} {at} {sorted(times)}"

    def end(self, job: Job, batch_id: int, owners: int) -> None:
        """Operator state: what each owner adds that has rows or due timers. The first ones fill a broadcast state."""
        for each in job.states:
            if each.kind == "split":
                self.operator[each.name] += [batch_id] * owners
            elif each.kind == "union" and owners:
                self.operator[each.name].append(batch_id)
            elif each.kind == "broadcast" and owners and not self.operator[each.name]:
                self.operator[each.name] = [batch_id]

    # ----------------------------------------------------------------------------------------------------- operations

    def act(self, declared: Declared, key: Any, do: Do) -> None:
        entries = self.keyed[declared.name]
        values, names = TYPES[declared.type].values, TYPES[declared.names].values
        first = names[0], values[0]
        one = names[do.name % len(names)], values[do.value % len(values)]
        if do.op == "delete" and declared.kind != "timers":
            if self.is_there(declared, key):
                entries.pop(key)
            return
        match declared.kind:
            case "value":
                self._value(declared, key, do.op, first[1], one[1])
            case "list":
                self._list(declared, key, do.op, first[1], one[1])
            case "map":
                self._map(declared, key, do.op, first, one)
            case "reducing":
                self._read(declared, key)
                entries[key] = self._cell(declared, one[1])
            case "aggregating":
                found = self._read(declared, key)
                count = (0 if found is MISSING else found[0]) + (2 if do.op == "add many" else 1)
                entries[key] = self._cell(declared, [count, do.value])
            case "columns":
                self._columns(declared, entries, key, do)
            case "timers":
                times = entries.setdefault(key, set())
                at = (0.0 if self.now == NEVER else self.now) + do.at_s
                (times.add if do.op == "register" else times.discard)(at)

    def _value(self, declared: Declared, key: Any, op: str, first: Any, value: Any) -> None:
        entries = self.keyed[declared.name]
        match op:
            case "put" | "put many":
                entries[key] = self._cell(declared, value)
            case "default":
                # With a default of the declaration a missing key reads as that, and nothing is stored.
                if not self.is_there(declared, key) and not declared.default:
                    entries[key] = self._cell(declared, value)
                else:
                    self._read(declared, key)
            case "pop":
                if self.is_there(declared, key):
                    entries.pop(key)
            case "count":
                found = self._read(declared, key)
                found = (first if declared.default else 0) if found is MISSING else found
                entries[key] = self._cell(declared, found % 1000 + 1)

    def _list(self, declared: Declared, key: Any, op: str, first: Any, value: Any) -> None:
        entries = self.keyed[declared.name]
        added = {"extend": [value, first, value], "clear": [], "empty": []}.get(op, [value])
        cells = [self._cell(declared, each) for each in added]
        entries[key] = cells if op in ("replace", "clear", "empty") else [*entries.get(key, []), *cells]

    def _map(self, declared: Declared, key: Any, op: str, first: tuple[Any, Any], one: tuple[Any, Any]) -> None:
        entries = self.keyed[declared.name]
        found: dict[str, Cell] = entries.setdefault(key, {})
        put = [one] if op in ("put", "replace") else []
        if op in ("replace", "clear"):
            found.clear()
        if op == "update":
            put = list({one[0]: one[1], first[0]: first[1]}.items())  # as a dict takes some names for the same
        for name, value in put:
            found[text_of(name)] = self._cell(declared, value, name)
        if op == "pop" and self._lives(declared, found.get(text_of(one[0]))):
            found.pop(text_of(one[0]), None)
        if op == "swap":
            lives = {text: cell for text, cell in found.items() if self._lives(declared, cell)}
            if len({cell.name for cell in lives.values()}) < len(lives):
                return  # no dict can hold them
            values = {text: evolved(declared.type, cell.value) for text, cell in lives.items()}
            entries[key] = {text: self._cell(declared, values[text], cell.name) for text, cell in lives.items()}

    def _columns(self, declared: Declared, entries: dict[Any, Any], key: Any, do: Do) -> None:
        row = row_of(declared, do.value)
        if do.op == "one":
            column = column_of(declared, do.value)
            found = self._read(declared, key)
            row = {**(dict.fromkeys(declared.columns) if found is MISSING else found), column: row[column]}
        entries[key] = self._cell(declared, row)

    # -------------------------------------------------------------------------------------------------------- reading

    def _cell(self, declared: Declared, value: Any, name: Any = None) -> Cell:
        return Cell(value, None if declared.ttl_s is None or self.now == NEVER else self.now, name)

    def _lives(self, declared: Declared, cell: Cell | None) -> bool:
        if cell is None:
            return False
        at = self.untimed.get(declared.name) if cell.at is None else cell.at
        return declared.ttl_s is None or at is None or self.now < at + declared.ttl_s

    def is_there(self, declared: Declared, key: Any) -> bool:
        found = self.visible(declared, key)
        return found is not MISSING and (declared.kind not in ("list", "map", "timers") or bool(found))

    def visible(self, declared: Declared, key: Any) -> Any:
        """What there is under the key: a value, a list, a dict from name to value by the text of the name, or times."""
        found = self.keyed[declared.name].get(key)
        match found:
            case None:
                return MISSING
            case Cell():
                return _row(declared, found.value) if self._lives(declared, found) else MISSING
            case set():
                return sorted(found)
            case list():
                return [cell.value for cell in found if self._lives(declared, cell)]
            case dict():
                return {text: cell for text, cell in found.items() if self._lives(declared, cell)}
        raise AssertionError(found)

    def _read(self, declared: Declared, key: Any) -> Any:
        """As `visible`; a read may count as a use."""
        found = self.visible(declared, key)
        if declared.on_read and self.now != NEVER and found is not MISSING:
            entries = self.keyed[declared.name]
            match cells := entries[key]:
                case Cell():
                    entries[key] = cells._replace(at=self.now)
                case list():
                    entries[key] = [cell._replace(at=self.now) for cell in cells if self._lives(declared, cell)]
                case dict():
                    lives = {text: cell for text, cell in cells.items() if self._lives(declared, cell)}
                    entries[key] = cells | {text: cell._replace(at=self.now) for text, cell in lives.items()}
        return found

    def look(self, declared: Declared, key: Any) -> Any:
        """What a processor sees, as `processors.look` has it; which may count as a use."""
        return self.shown(declared, self._read(declared, key))

    def shown(self, declared: Declared, found: Any) -> Any:
        """What is under a key, as a program sees it."""
        match declared.kind:
            case "timers":
                return [] if found is MISSING else found
            case "list":
                return [] if found is MISSING else [evolved(declared.type, each) for each in found]
            case "map":
                entries = {} if found is MISSING else found
                cells = entries.items()
                return sorted([text, text_of(evolved(declared.type, cell.value))] for text, cell in cells)
            case "value" if found is MISSING and declared.default:
                return TYPES[declared.type].values[0]
            case "value" | "reducing" if found is not MISSING:
                return evolved(declared.type, found)
        return None if found is MISSING else found

    def seen(self, job: Job, key: Any) -> str:
        keyed = [each for each in job.states if each.kind not in OPERATOR]
        copies = {each.name: self.operator[each.name] for each in job.states if each.kind == "broadcast"}
        return text_of({each.name: self.look(each, key) for each in keyed} | copies)

    def rows(self, declared: Declared) -> Mapping[Any, Any]:
        """All keys that are there, and what is under them."""
        return {key: self.visible(declared, key) for key in self.keyed[declared.name] if self.is_there(declared, key)}

    def keys(self, declared: Declared) -> Iterable[Any]:
        return self.rows(declared).keys()


def _row(declared: Declared, value: Any) -> Any:
    """A row of columns as it is declared now: null where a column has come since."""
    return {name: value.get(name) for name in declared.columns} if declared.kind == "columns" else value
