"""Readers: each reads all that it can of a job from outside, and what it found is compared with the dictionaries."""

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

import statebackend as sb
from statebackend._tables.key_groups import key_group
from statebackend.errors import StateBackendError
from tests.programs.dictionaries import Dictionaries
from tests.programs.program import OPERATOR, Declared, Job
from tests.programs.values import TYPES, key_read, read_of, short, text_of


class WrongError(AssertionError):
    """The library told something else than the dictionaries hold."""


def check(what: str, found: Any, expected: Any) -> None:
    if found != expected:
        if isinstance(found, Mapping) and isinstance(expected, Mapping):
            found, expected = (
                {name: each for name, each in mine.items() if other.get(name) != each}
                for mine, other in ((found, expected), (expected, found))
            )
        raise WrongError(f"{what}:\n    found    {short(found)}\n    expected {short(expected)}")


@contextmanager
def refused(*kinds: type[StateBackendError]) -> Generator[None]:
    """In this context an error of one of these kinds must be raised. Raises `WrongError` if none is."""
    try:
        yield
    except kinds:
        return
    raise WrongError("went through in silence")


def expected_rows(held: Dictionaries, declared: Declared) -> dict[str, str]:
    """What a reader in Arrow shows: the texts of the values by those of the keys."""
    return {text_of(key_read(key)): text_of(as_read(declared, found)) for key, found in held.rows(declared).items()}


def as_read(declared: Declared, found: Any) -> Any:
    match declared.kind:
        case "value" | "reducing":
            return read_of(declared.type, found)
        case "aggregating":
            return {"_1": found[0], "_2": found[1]}
        case "list":
            return [read_of(declared.type, each) for each in found]
        case "map":
            entries = [
                (read_of(declared.names, cell.name), read_of(declared.type, cell.value)) for cell in found.values()
            ]
            return sorted(([text_of(name), text_of(value)] for name, value in entries))
        case "columns" | "timers":
            return found
    raise AssertionError(declared)


def rows_in(declared: Declared, batches: Any, groups: int) -> dict[str, str]:
    """The rows of `read_state`, as texts. Raises `WrongError` for a key that comes twice, or in a wrong group."""
    found: dict[str, str] = {}
    for row in batches:
        key = text_of(row["key"])
        if key in found:
            raise WrongError(f"{declared.name} has the key {key} twice")
        plain = tuple(row["key"].values()) if isinstance(row["key"], dict) else row["key"]
        check("key group", row["key_group"], key_group(plain, groups) if row["key_group"] is not None else None)
        value = {name: row[name] for name in declared.columns} if declared.kind == "columns" else row.get("value")
        if declared.kind == "map":
            value = entries_in(value)
        found[key] = text_of(value)
    return found


def entries_in(pairs: Iterable[Any]) -> list[list[str]]:
    """The entries of a map, which is a list of records where Arrow has no map for its names."""
    found = (tuple(each.values()) if isinstance(each, dict) else each for each in pairs)
    return sorted([text_of(name), text_of(value)] for name, value in found)


def elements_in(declared: Declared, values: Iterable[int]) -> list[int]:
    """The elements of an operator state. Each owner has all of a union state, and so it is compared as a set."""
    return sorted(set(values) if declared.kind == "union" else values)


class Readers:
    """The readers of one job. `held` is what is committed, `kept` what each retained checkpoint holds."""

    def __init__(self, settings: sb.Settings, job: Job) -> None:
        self.settings = settings
        self.job = job

    def read(self, declared: Declared, **options: Any) -> list[dict[str, Any]]:
        ttl = self.job.ttl(declared)
        migrate = TYPES[declared.type].upcasts
        return sb.read_state(self.settings, declared.name, ttl=ttl, migrate=migrate, **options).read_all().to_pylist()

    async def look_whole(self, held: Dictionaries, one: int | None = None, **options: Any) -> None:
        """Every state, or one of them by its number, read as a whole."""
        states = self.known(held, self.job.states)
        for declared in states if one is None or not states else [states[one % len(states)]]:
            rows: list[dict[str, Any]] = []
            ttl = self.job.ttl(declared)
            migrate = TYPES[declared.type].upcasts
            opening = sb.read_batches(self.settings, declared.name, ttl=ttl, migrate=migrate, **options)
            async with opening as batches:
                async for batch in batches:
                    rows += batch.to_pylist()
            what = f"{declared.name} as a whole {options or ''}"
            if declared.kind in OPERATOR:
                check(
                    what,
                    elements_in(declared, (row["value"] for row in rows)),
                    elements_in(declared, held.operator[declared.name]),
                )
            else:
                check(what, rows_in(declared, rows, held.groups), expected_rows(held, declared))

    def look_in_parts(self, held: Dictionaries, cut: int) -> None:
        """Every keyed state in two ranges of key groups."""
        for declared in self.known(held, self.keyed):
            groups = held.groups
            parts = [
                rows_in(declared, self.read(declared, key_groups=part), groups)
                for part in ((0, cut), (cut + 1, groups - 1))
            ]
            check(f"{declared.name} in parts", parts[0] | parts[1], expected_rows(held, declared))

    def look_at_keys(self, held: Dictionaries, keys: list[Any]) -> None:
        """Every keyed state at some keys."""
        for declared in self.known(held, self.keyed):
            expected = expected_rows(held, declared)
            asked = [text_of(key_read(key)) for key in keys]
            found = rows_in(declared, self.read(declared, keys=keys), held.groups)
            check(f"{declared.name} at keys", found, {key: expected[key] for key in asked if key in expected})

    def known(self, held: Dictionaries, states: Iterable[Declared]) -> list[Declared]:
        """The states, of the types that the commit knows them by."""
        return [
            msgspec.structs.replace(each, type=held.known[each.name].type, columns=held.known[each.name].columns)
            for each in states
            if each.name in held.known
        ]

    @property
    def keyed(self) -> list[Declared]:
        return [each for each in self.job.states if each.kind not in OPERATOR]
