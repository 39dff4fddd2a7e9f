"""Histories of a type: runs of a job that declare it with other fields, wider, or with an upcast more; and the oracle.

The rule is short: a value stays as it was written until it is written again. Whenever it is read, the upcasts that its
version lacks are applied to what was written, and the type of the reader takes its fields from that.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import msgspec
from hypothesis import strategies as st

import statebackend as sb
from statebackend._tables.key_groups import key_group
from tests.knobs import replaced
from tests.rewrite.jobs import settings_of

SETTINGS = settings_of(4)
FIELDS = ("a", "b", "c")
KINDS = ("value", "list", "map", "total", "last")
KEYS = ("k0", "k1", "k2")
HALVES = (sb.owners.KeyGroupRange(0, 1), sb.owners.KeyGroupRange(2, 3))

Plain = dict[str, Any]
"""A record as builtins."""


class Run(NamedTuple):
    """One run: `fields` of the type, the kind of an `upcast` that it adds, the keys it writes, and how it goes on."""

    fields: Sequence[str]
    upcast: str
    is_wide: bool
    writes: Sequence[str]
    has_base: bool
    owners: int


RUNS = st.lists(
    st.builds(
        Run,
        st.lists(st.sampled_from(FIELDS), min_size=1, unique=True),
        st.sampled_from(["", "", "twice", "moved", "typed"]),
        st.booleans(),
        st.lists(st.sampled_from(KEYS), max_size=2, unique=True),
        st.booleans(),
        st.sampled_from([1, 1, 2]),
    ),
    min_size=2,
    max_size=5,
)


class Stored(NamedTuple):
    """A value as it was written, by a program with so many upcasts."""

    plain: Plain
    version: int


class Program:
    """What the runs up to one of them declare: the type, and the upcasts to it."""

    def __init__(self, runs: Sequence[Run]) -> None:
        run, number = runs[-1], len(runs)
        item: Any = int | None if any(each.is_wide for each in runs) else int
        self.defaults: Plain = {name: -100 * number - place for place, name in enumerate(run.fields)}
        self.type: Any = msgspec.defstruct("Leg", [(name, item, default) for name, default in self.defaults.items()])
        before = Program(runs[:-1]).upcasts if number > 1 else []
        self.upcasts: list[Callable[[Plain], Any]] = [*before, *self._upcast(run.upcast if number > 1 else "")]

    def _upcast(self, kind: str) -> Sequence[Callable[[Plain], Any]]:
        def twice(leg: Plain) -> Plain:
            return {name: 2 * value if isinstance(value, int) else value for name, value in leg.items()}

        def moved(leg: Plain) -> Plain:
            return {"b" if name == "a" else name: value for name, value in leg.items() if name != "b" or "a" not in leg}

        def typed(leg: Plain) -> Any:
            return self.type(**{name: leg[name] for name in self.defaults if name in leg})

        return {"": [], "twice": [twice], "moved": [moved], "typed": [typed]}[kind]

    def leg(self, number: int) -> Any:
        return self.type(**{name: number + place for place, name in enumerate(self.defaults)})

    def written(self, leg: Any) -> Stored:
        return Stored(msgspec.to_builtins(leg), len(self.upcasts))

    def brought_forward(self, stored: Stored) -> Plain:
        """The record after its upcasts, with the fields that it has then."""
        plain = stored.plain
        for upcast in self.upcasts[stored.version :]:
            plain = msgspec.to_builtins(upcast(dict(plain)))
        return plain

    def read(self, stored: Stored) -> Any:
        """As a program reads it: a field that it lacks has its default."""
        return self.type(**{**self.defaults, **self._known(stored)})

    def shown(self, stored: Stored) -> Plain:
        """As a reader from outside shows it, who knows no defaults."""
        return {**dict.fromkeys(self.defaults), **self._known(stored)}

    def _known(self, stored: Stored) -> Plain:
        return {name: value for name, value in self.brought_forward(stored).items() if name in self.defaults}


def added(old: Any, new: Any) -> Any:
    """Of two records, the sums of their fields, where they are numbers."""
    fields = {name: getattr(new, name) for name in new.__struct_fields__}
    both = {name: getattr(old, name) for name in fields}
    return type(new)(
        **{name: both[name] + value if isinstance(both[name], int) else value for name, value in fields.items()}
    )


def newest(type_: Any) -> Any:
    """An aggregate whose accumulator is the last value that was added."""

    class Newest:
        def create(self) -> type_:
            return type_()

        def add(self, accumulator: Any, value: Any) -> Any:
            return value

        def result(self, accumulator: Any) -> Any:
            return accumulator

        def merge(self, accumulator: Any, other: Any) -> Any:
            return other

    return Newest()


class States:
    """A state of each kind, declared as a program does."""

    def __init__(self, backend: sb.StateBackend, program: Program) -> None:
        type_, migrate = program.type, program.upcasts
        self.value = backend.value_state("value", type_, migrate=migrate)
        self.list = backend.list_state("list", type_, migrate=migrate)
        self.map = backend.map_state("map", str, type_, migrate=migrate)
        self.total = backend.reducing_state("total", type_, added, migrate=migrate)
        self.last = backend.aggregating_state("last", newest(type_), migrate=migrate)

    def write(self, key: str, leg: Any, entry: str) -> None:
        self.value[key] = leg
        self.list[key].append(leg)
        self.map[key][entry] = leg
        self.total.add(key, leg)
        self.last.add(key, leg)

    def read(self) -> dict[str, Any]:
        return {
            "value": dict(self.value),
            "list": {key: list(found) for key, found in self.list.items()},
            "map": {key: dict(found) for key, found in self.map.items()},
            "total": dict(self.total),
            "last": dict(self.last),
        }


class Oracle:
    """What was written, in plain dictionaries: of each kind by key."""

    def __init__(self) -> None:
        self.kinds: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}

    def write(self, key: str, program: Program, leg: Any, entry: str) -> None:
        stored, kinds = program.written(leg), self.kinds
        kinds["value"][key] = kinds["last"][key] = stored
        kinds["list"][key] = [*kinds["list"].get(key, []), stored]
        kinds["map"][key] = {**kinds["map"].get(key, {}), entry: stored}
        old = kinds["total"].get(key)
        kinds["total"][key] = stored if old is None else program.written(added(program.read(old), leg))

    def seen(self, look: Callable[[Stored], Any]) -> dict[str, Any]:
        """All of it, each record as `look` has it."""
        return {kind: {key: seen(value, look) for key, value in found.items()} for kind, found in self.kinds.items()}


def seen(value: Any, look: Callable[[Stored], Any]) -> Any:
    """A value of any kind, each record of it as `look` has it."""
    if isinstance(value, Stored):
        return look(value)
    if isinstance(value, list):
        return [look(each) for each in value]
    return {entry: look(each) for entry, each in value.items()}


@asynccontextmanager
async def opened(
    settings: sb.Settings, store: sb.ObjectStore, *, has_base: bool, owners: int
) -> AsyncGenerator[tuple[Sequence[sb.StateBackend], Callable[[], Any]]]:
    """The backend of each owner, and a function that commits what they have, and waits for the bases that are due."""
    settings = replaced(settings, materialize_handles_max=1 if has_base else 1000, materialize_interval_s=0.0)
    async with AsyncExitStack() as stack:
        if owners == 1:
            backend = await stack.enter_async_context(sb.open_backend(settings, store=store))

            async def commit() -> None:
                await backend.checkpoint(backend.next_checkpoint_id)
                await backend._base_writer.settled()

            yield [backend], commit
            return
        coordinator = await stack.enter_async_context(sb.owners.open_coordinator(settings, store=store))
        backends = [
            await stack.enter_async_context(sb.open_backend(settings, store=store, key_groups=half, owners=HALVES))
            for half in HALVES
        ]

        async def commit_all() -> None:
            number = coordinator.next_checkpoint_id
            await coordinator.commit(number, [await each.snapshot(number) for each in backends])
            for each in backends:
                await each.notify_complete(number)
                await each._base_writer.settled()

        yield backends, commit_all


def owner_of(key: str, backends: Sequence[sb.StateBackend]) -> int:
    """The place of the backend that owns a key."""
    group = key_group(key, SETTINGS.max_parallelism)
    return next(place for place, each in enumerate(backends) if group in each.key_groups)


async def live(
    settings: sb.Settings, store: sb.ObjectStore, runs: Sequence[Run], told: Callable[[Mapping[str, Any]], None]
) -> Program:
    """Run them all, and compare every value with the oracle. `told` is what was written, after each commit."""
    oracle, program = Oracle(), Program(runs[:1])
    for number, run in enumerate(runs):
        program = Program(runs[: number + 1])
        async with opened(settings, store, has_base=run.has_base, owners=run.owners) as (backends, commit):
            owners = [States(each, program) for each in backends]
            for place, key in enumerate(run.writes):
                leg, entry = program.leg(10 * number + place), f"of {number % 2}"
                owners[owner_of(key, backends)].write(key, leg, entry)
                oracle.write(key, program, leg, entry)
            for _ in range(2):  # the second commit has the bases that were written behind the first
                await commit()
                told({kind: dict(found) for kind, found in oracle.kinds.items()})
            found: dict[str, Any] = {kind: {} for kind in KINDS}
            for states in owners:
                for kind, values in states.read().items():
                    found[kind] |= values
            assert found == oracle.seen(program.read)
    return program
