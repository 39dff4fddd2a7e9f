"""Draws a program from a seed: every choice by one `random.Random`, so that the seed says it all."""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import msgspec

import statebackend as sb
from statebackend.settings.settings import STATE_MEMORY_BYTES_MIN, TABLE_MEMORY_BYTES_MIN
from tests.programs.program import (
    Adopt,
    Batch,
    Clone,
    Declared,
    Do,
    Edit,
    Erase,
    Follow,
    FromSavepoint,
    Heir,
    Item,
    Job,
    Look,
    Mirror,
    Program,
    Rewind,
    Rewrite,
    Savepoint,
    Seed,
    SeedAnew,
    Slip,
    Start,
    Step,
    Transform,
    Upkeep,
)
from tests.programs.slips import SLIPS
from tests.programs.tails import tail
from tests.programs.values import ENTRY_KEYS, KEYS, LEGS, TYPES
from tests.programs.weather import WEATHERS

BEGIN_S = 1_700_000_000.0
PLAIN = {"has_local": False} | {
    field.name: field.default for field in msgspec.structs.fields(sb.Settings) if field.default is not msgspec.NODEFAULT
}
"""The settings as they are by default."""
OPS = {
    "value": ("put", "put", "put many", "default", "pop", "delete"),
    "list": ("append", "append", "extend", "extend", "replace", "clear", "empty", "delete"),
    "map": ("put", "put", "put", "pop", "replace", "update", "swap", "clear", "delete"),
    "reducing": ("add", "add", "add many", "delete"),
    "aggregating": ("add", "add", "add many", "delete"),
    "columns": ("put", "put", "one", "delete"),
    "timers": ("register", "register", "register", "delete"),
}
KEYED = ("value", "value", "list", "map", "map", "reducing", "aggregating", "columns", "timers")
READERS = (
    "parts",
    "keys",
    "checkpoint",
    "savepoint",
    "moment",
    "rows",
    "differences",
    "export",
    "commands",
    "spark",
    "feed",
    "feed",
    "history",
    "report",
)
OF_KEYS = ("null key", "renamed key")
"""Slips that must be refused wherever the clock stands: most often all of their rows are late."""
GROUPS = (3, 128, 255, 256, 257, 32_768)
"""Numbers of key groups."""
IN_PROCESS = tuple(reader for reader in READERS if reader != "commands")
"""Those that raise the error of a store."""
TIMED = ("value", "list", "map", "reducing", "aggregating", "columns")
"""The kinds that may have a time-to-live."""
COLUMNS = tuple(name for name, type_ in TYPES.items() if type_.arrow is not None and name != "large")
MISHAPS = (
    "delivered again",
    "raises first",
    "raises in the middle",
    "raises in the end",
    "killed before the commit",
    "killed after the commit",
    "stopped",
    "output raises",
    "publish raises",
    "store fails",
    "answers lost",
    "store refuses",
    "killed at a request",
    "killed at a request",
)


HELD_BACK = frozenset[str]()
"""Combinations that are known to be wrong today: they are not drawn before they are mended."""
FRESH = 100_000
"""From this seed on are those that a commit draws for its tests."""
YOUNG = frozenset({"weather", "kill at a request", "adopt", "rewrite", "standby"})
"""What takes longest, and is drawn for one in `WITH_YOUNG` of those: they are many, and each commit has others."""
WITH_YOUNG = 4
TAILED, FRESH_TAILED = 0.25, 0.12
"""So many programs end with what `tails.py` has; fewer of those of a commit, which cost more with them."""
BOUNDED = 0.3
"""So many programs have small bounds."""
ZONES = ("UTC", "UTC", "America/New_York", "Asia/Kathmandu", "+05:45", "-03:30")
BESIDE = ("", "", "", "store fails", "answers lost", "store refuses", "killed at a request")
"""The weather of what is done beside the stream."""


def draw(seed: int, held_back: frozenset[str] = HELD_BACK) -> Program:
    """The program of a seed."""
    chance = Random(seed)
    if seed >= FRESH and seed % WITH_YOUNG:
        held_back |= YOUNG
    drawing = Drawing(chance, held_back)
    steps = _steps(drawing)
    groups = chance.choice((128, 128, *GROUPS))
    drawing.chance = Random(f"{seed} and its tail")
    if "tail" not in held_back and drawing.chance.random() < (TAILED if seed < FRESH else FRESH_TAILED):
        steps += tail(drawing)
    drawing.chance = Random(f"{seed} and its bounds")
    bounds = drawing.chance.randrange(1 << 20) if drawing.chance.random() < BOUNDED else None
    program = Program(drawing.keys, tuple(steps), groups, None if "bounds" in held_back else bounds)
    return msgspec.structs.replace(program, bounds=None) if _has_large(program) else program


def _has_large(program: Program) -> bool:
    """True if a state has values of megabytes: cut after 32 bytes they are 160,000 parts, which take for ever."""
    jobs = (step.job for step in program.steps if isinstance(step, Start))
    return any(each.type == "large" for job in jobs for each in job.states)


def _steps(drawing: "Drawing") -> list[Step]:
    chance = drawing.chance
    steps: list[Step] = [Start(drawing.job())]
    if (drawn := chance.random()) < 0.1:
        items, starts = drawing.items(chance.choice((0, 3, 40)), 5), drawing.one_of("starts", (False, True), (False,))
        steps.append(Seed(items, BEGIN_S - 10.0, starts, *drawing.weather()))
    elif drawn < 0.2:
        steps.append(Edit(drawing.items(2, 3), 1, first=True, skipped=chance.choice((0, 0, 5))))
    for _ in range(chance.choice((1, 2, 3))):
        for _ in range(chance.choice((1, 2, 4))):
            steps.append(drawing.batch())
            if chance.random() < 0.4:
                steps.append(drawing.beside())
        if chance.random() < 0.6:
            drawing.job_again()
            after = chance.choice(drawing.stops())
            steps.append(Start(drawing.drawn, after))
            if chance.random() < 0.3:  # of commits from before what has evolved
                reader = chance.choice(("feed", "differences"))
                steps += [drawing.batch(), Look(reader, chance.randrange(127))]
    steps.append(drawing.batch())
    if chance.random() < 0.5:
        steps += [drawing.slip(), drawing.batch()]
    return steps


class Drawing:
    """What was drawn by now, and the chance by which the next is."""

    def __init__(self, chance: Random, held_back: frozenset[str]) -> None:
        self.chance = chance
        self.held_back = held_back
        self.keys = chance.choice(tuple(KEYS))
        self.now_s = BEGIN_S
        self.drawn = Job()
        self.dropped = set[str]()

    def job(self) -> Job:
        chance = self.chance
        clock = chance.choice(("none", "event", "event", "batch"))
        work = chance.choice(("process", "process", "async process", "table", "function", "async function"))
        is_function = "function" in work
        output = chance.choice(
            ("none", "outbox", "async outbox")
            if is_function
            else ("none", "function", "function", "outbox", "async outbox")
        )
        late = chance.choice((None, "drop", "keep", *(() if is_function or output == "none" else ("output",))))
        states = tuple(self.state(number, clock) for number in range(chance.choice((1, 2, 3, 4))))
        self.drawn = Job(
            work=work,
            states=states,
            parallelism=0 if is_function else chance.choice((0, 0, 1, 2, 3)),
            output=output,
            clock=clock,
            lateness_s=chance.choice((0.0, 5.0, 3600.7)) if clock == "event" else 0.0,
            late=late if clock == "event" else None,
            zone=self.one_of("zones", ZONES, ("UTC",)),
            times=chance.choice(("instant", "instant", "naive")),
            on_rewind=chance.choice(("fail", "rollback")),
            concurrency=chance.choice((None, 1, 3)) if work == "async process" else None,
            settings=self.settings(),
        )
        if "RocksDB in several owners" in self.held_back and self.drawn.parallelism:
            self.drawn.settings.pop("table", None)
        return self.drawn

    def settings(self) -> dict[str, Any]:
        chance = self.chance
        drawn = {
            "table": chance.choice(("heap", "heap", "rocksdb", "rocksdb", "runs")),
            "table_memory_bytes": chance.choice((PLAIN["table_memory_bytes"], TABLE_MEMORY_BYTES_MIN)),
            "has_local": chance.random() < 0.4,
            "rocksdb_bases": chance.choice((True, True, False)),
            "materialize_handles_max": chance.choice((1, 2, 512)),
            "inline_bytes_max": chance.choice((None, 0)),
            "compression": chance.choice(("zstd", "none", "lz4", "snappy")),
            "checkpoints_retained": chance.choice((1, 3)),
            "materialize_fan_in": chance.choice((0, 2, 16)),
        }
        if (drawn["table"], drawn["table_memory_bytes"]) == ("heap", TABLE_MEMORY_BYTES_MIN):
            drawn["state_memory_bytes"] = 2 * STATE_MEMORY_BYTES_MIN  # some tens of rows, and places of 256 pages
        return {name: value for name, value in drawn.items() if value != PLAIN[name]}

    def job_again(self) -> None:
        """The job as it is written the next time: the same states, and much else may be different."""
        chance, was = self.chance, self.drawn
        if chance.random() < 0.4:
            return
        job = self.job()
        while job.clock != was.clock:
            job = self.job()
        states = tuple(map(self.state_again, was.states))
        if chance.random() < 0.4:
            states = (*states, self.state(len(states), was.clock))
        zone = was.zone if chance.random() < 0.6 else job.zone
        is_told = was.zone_told or zone != was.zone
        self.drawn = msgspec.structs.replace(job, states=states, times=was.times, zone=zone, zone_told=is_told)

    def state_again(self, state: Declared) -> Declared:
        """The state as it is declared the next time: its type may have evolved, and a time-to-live come, or shrunk."""
        chance, changes = self.chance, dict[str, Any]()
        versions = list(LEGS)
        if state.type in LEGS and chance.random() < 0.7:
            changes["type"] = chance.choice(versions[versions.index(state.type) :])
        if state.kind == "columns" and chance.random() < 0.4:
            others = [name for name in COLUMNS if name not in (*state.columns, *self.dropped)]
            kept = state.columns[1:] if len(state.columns) > 1 and chance.random() < 0.5 else state.columns
            self.dropped |= {*state.columns} - {*kept}
            changes["columns"] = (*kept, *others[:1])
        if state.kind in TIMED and self.drawn.clock != "none" and chance.random() < 0.3:
            changes["ttl_s"] = 3600.0 if state.ttl_s is None else min(state.ttl_s, chance.choice((1.0, 20.0)))
            changes["on_read"] = chance.random() < 0.3
        return msgspec.structs.replace(state, **changes)

    def state(self, number: int, clock: str) -> Declared:
        chance = self.chance
        kinds = (
            KEYED
            if chance.random() < 0.85
            else (self.one_of("broadcast", ("split", "broadcast", "union"), ("split",)),)
        )
        kind = chance.choice(kinds)
        if kind == "timers" and clock == "none":
            kind = "value"
        is_timed = clock != "none" and kind in TIMED
        ttl_s = chance.choice((None, 1.0, 20.0, 3600.0)) if is_timed else None
        return Declared(
            f"{kind[:1]}{number}",
            kind,
            type=self.type() if kind in ("value", "list", "map", "reducing") else "int",
            names=self.names() if kind == "map" else "str",
            columns=tuple(chance.sample(COLUMNS, chance.choice((1, 2, 4)))) if kind == "columns" else (),
            ttl_s=ttl_s,
            on_read=ttl_s is not None and chance.random() < 0.3,
            default=kind == "value" and chance.random() < 0.3,
        )

    def one_of(self, what: str, values: tuple[Any, ...], settled: tuple[Any, ...]) -> Any:
        """One of the values; of those that are settled, while the others are held back."""
        return self.chance.choice(settled if what in self.held_back else values)

    def type(self) -> str:
        name = "leg 0" if self.chance.random() < 0.15 else self.chance.choice(tuple(TYPES))
        return "str" if name == "large" and self.chance.random() < 0.7 else name

    def names(self) -> str:
        name = self.chance.choice(ENTRY_KEYS)
        for what, names in (("no name in a map", ("maybe text",)), ("equal names in a map", ("float", "decimal"))):
            if what in self.held_back and name in names:
                return "str"
        return name

    def items(self, count: int, keys: int) -> tuple[Item, ...]:
        return tuple(self.item(keys) for _ in range(count))

    def item(self, keys: int) -> Item:
        chance = self.chance
        states = [each for each in self.drawn.states if each.kind in OPS]
        does = tuple(self.do(chance.choice(states)) for _ in range(chance.choice((0, 1, 1, 2, 3)))) if states else ()
        at_s = self.now_s + chance.choice((0.0, 0.0, 1.0, 2.5, -3.0, -100.0, 0.000001))
        return Item(chance.randrange(keys), at_s, does)

    def do(self, state: Declared) -> Do:
        chance = self.chance
        op = chance.choice(
            (*OPS[state.kind], *(("count", "count") if state.kind == "value" and state.type == "int" else ()))
        )
        at_s = float(chance.choice((0, 1, 2, 3, 5, 8, 20))) if state.kind == "timers" else 0.0
        return Do(state.name, op, chance.randrange(9), chance.randrange(4), at_s)

    def batch(self) -> Batch:
        chance = self.chance
        self.now_s += chance.choice((0.0, 1.0, 4.0, 15.0, 4000.0))
        count, keys = chance.choice(((0, 1), (1, 1), (2, 2), (3, 3), (8, 3), (20, 2), (20, 1), (40, 40)))
        if chance.random() < 0.05:
            return Batch(self.emptying(), self.mishap())
        return Batch(self.items(count, keys), self.mishap(), chance.choice((0, 0, 1, 3)), chance.randrange(12))

    def emptying(self) -> tuple[Item, ...]:
        """Rows that delete the first keys from a state: most often all that it has."""
        states = [each.name for each in self.drawn.states if each.kind in TIMED]  # all keyed ones but timers
        does = (Do(self.chance.choice(states), "delete"),) if states else ()
        return tuple(Item(key, self.now_s, does) for key in range(8))

    def plain_batch(self) -> Batch:
        return msgspec.structs.replace(self.batch(), mishap="")

    def slip(self) -> Slip:
        batch, what = self.plain_batch(), self.chance.choice(tuple(SLIPS))
        if self.chance.random() < (0.6 if what in OF_KEYS else 0.1):
            items = tuple(msgspec.structs.replace(item, at_s=BEGIN_S - 9000.0) for item in batch.items)
            batch = msgspec.structs.replace(batch, items=items)
        return Slip(what, batch)

    def mishap(self) -> Any:
        chance = self.chance
        mishap = chance.choice(tuple(filter(self.is_drawn, MISHAPS))) if chance.random() < 0.35 else ""
        if mishap == "output raises" and self.drawn.output != "function":
            return ""
        if mishap == "publish raises" and "outbox" not in self.drawn.output:
            return ""
        return mishap

    def is_drawn(self, mishap: str) -> bool:
        """False for a mishap that is held back."""
        if mishap == "killed at a request":
            return "kill at a request" not in self.held_back
        return mishap not in WEATHERS or "weather" not in self.held_back

    def beside(self) -> Step:
        chance = self.chance
        drawn: tuple[Callable[[], Step], ...] = (
            lambda: Edit(self.items(2, 3), chance.choice((1, 4)), skipped=chance.choice((0, 0, 7))),
            lambda: Savepoint(chance.choice(("first", "second"))),
            lambda: Savepoint(chance.choice(("first", "second")), self.plain_batch()),
            lambda: Upkeep(chance.choice(("sweep", "repair", "verify", "drop savepoints")), *self.weather()),
            self.follow,
            self.follow,
            self.heir,
            self.erase,
            lambda: Rewind(chance.choice((1, 1, 2)), self.plain_batch()),
            lambda: FromSavepoint(chance.choice(("first", "second")), self.plain_batch()),
            self.slip,
            self.slip,
            *(lambda: Look(self.one_of("history", READERS, READERS[:-2]), chance.randrange(127)),) * 3,
        )
        young: Mapping[str, Callable[[], Step]] = {
            "adopt": self.adopt,
            "mirror": self.mirror,
            "clone": self.clone,
            "seed anew": self.seed_anew,
            "transform": lambda: Transform(
                chance.randrange(9), *(chance.randrange(5) for _ in range(3)), *self.weather()
            ),
            "rewrite": lambda: Rewrite(chance.choice(GROUPS), chance.choice(("", "first")), *self.weather()),
            "weather": lambda: Look(chance.choice(IN_PROCESS), chance.randrange(127), chance.choice((*WEATHERS,))),
        }
        drawn += tuple(step for name, step in young.items() if name not in self.held_back)
        return chance.choice(drawn)()

    def stops(self) -> tuple[Any, ...]:
        """How a run may end."""
        return ("closed", "left open", "killed", *(() if "standby" in self.held_back else ("taken over",)))

    def weather(self) -> tuple[Any, int]:
        """The weather of an action beside the stream, and its fate."""
        return self.one_of("weather", BESIDE, ("",)), self.chance.randrange(12)

    def follow(self) -> Follow:
        chance = self.chance
        is_quick = self.one_of("weather", (False, False, True), (False,))
        return Follow(
            every_s=0.01 if is_quick else 3600.0,
            part=chance.choice((0, 0, 0, 1, 40)),
            pin=chance.random() < 0.2,
            weather=self.one_of("weather", ("", "", "", "store fails", "store refuses"), ("",)),
        )

    def mirror(self) -> Mirror:
        chance = self.chance
        weather, fate = self.weather()
        return Mirror(
            state=chance.randrange(9),
            lag=chance.choice((1, 1, 1, 2, 5)),
            as_json=chance.random() < 0.2,
            in_sink=chance.random() < 0.3,
            anew=chance.random() < 0.1,
            weather=weather,
            fate=fate,
        )

    def heir(self) -> Heir:
        weather, fate = self.weather()
        twice = self.chance.random() < 0.3
        return Heir(self.items(2, 3), self.plain_batch(), twice=twice, weather=weather, fate=fate)

    def adopt(self) -> Adopt:
        times = self.chance.choice((1, 1, 1, 1, 1, 2, 2, 18))
        batch = self.plain_batch()
        return Adopt(batch if times < 3 else msgspec.structs.replace(batch, items=batch.items[:2]), times, times == 2)

    def clone(self) -> Clone:
        chance = self.chance
        weather, fate = self.weather()
        return Clone(
            of=chance.choice(("newest", "newest", "moment", "savepoint")),
            share=chance.choice((1.0, 1.0, 1.0, 0.5, 0.01)),
            goes_on=chance.random() < 0.5,
            leaves_output=chance.random() < 0.2,
            weather=weather,
            fate=fate,
        )

    def seed_anew(self) -> SeedAnew:
        chance = self.chance
        form = chance.choice(("pairs", "columns", "files"))
        return SeedAnew(form, chance.random() < 0.5, *self.weather())

    def erase(self) -> Erase:
        chance = self.chance
        keys = tuple(chance.sample(range(8), chance.choice((1, 1, 2, 5))))
        beside = self.plain_batch() if chance.random() < 0.2 else None
        return Erase(keys, chance.random() < 0.2, chance.random() < 0.7, beside, *self.weather())
