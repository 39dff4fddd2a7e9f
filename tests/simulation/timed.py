"""Time in a simulated job: batches of rows with times, the job's clock, timers, values that expire; what is expected.

The rows of a batch follow from its number: every process that it is delivered to gets the same. So with event time, the
clock and all that goes by it follow from the number as well, however many lives have tried the batch, and wherever.
"""

import datetime as dt
import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, NamedTuple, cast

from statebackend._checkpoint.backend import KeyedBackend
from statebackend._columns.arrow import pa
from statebackend._processing.event_time import EventTime, Late
from statebackend._processing.processor import KeyedProcessor, Processed, ProcessorContext
from statebackend._processing.runner import ProcessorRunner
from statebackend._state.time.job_clock import NOT_BEGUN
from statebackend._state.time.ttl import TimeToLive
from statebackend._tables.key_groups import key_group
from statebackend.ids import ClockKind, ClockMark, Key, KeyGroupRange
from tests.invariants import Contents, Stamped, assert_same_contents, living

RECENT: Final = "recent"
FIRED: Final = "fired"
IDLE: Final = "idle"
TIMED_STATES: Final = (RECENT, FIRED, IDLE)
"""The newest text of each key, which expires; how many of its timers have fired, and the last; and its timers."""
TTL_S: Final = 25.0
AGAIN_S: Final = 11.0
"""Every third timer of a key registers another one, so much later."""
ROW_KEYS: Final = ("", "a", "b", "c", "N14228", "ü", "long " * 20)
BEGIN_S: Final = 1000
BATCH_S: Final = 4
"""Event time passes about so quickly from one batch to the next."""

Fired = tuple[str, str, float, str | None]
"""A row that is put out: "timer" or "late", its key, its time, and for a timer the key's text if it has not expired."""


@dataclass(frozen=True, kw_only=True)
class TimePlan:
    """The clock of a job, and the fate of its late rows."""

    kind: ClockKind
    lateness_s: float
    late: Late


class JobTime(NamedTuple):
    """The newest batch of timed rows in the state, -1 before the first, and the clock."""

    batch: int = -1
    clock: ClockMark | None = None

    @property
    def now_s(self) -> float:
        """The clock's time; `NOT_BEGUN` before that."""
        return NOT_BEGUN if self.clock is None else self.clock.now_s


class TimedRow(NamedTuple):
    """A row of a batch. `due_s`: a timer is wanted so many seconds after it, or before."""

    number: int
    key: str
    at_s: int
    due_s: float | None
    text: str


def draw_time(chance: Random) -> TimePlan | None:
    """Draw the clock of two jobs of three."""
    kind: ClockKind | None = chance.choice((None, "event", "event", "event", "processing", "processing"))
    if kind is None:
        return None
    late: Late = chance.choice(("drop", "keep", "output"))
    return TimePlan(kind=kind, lateness_s=chance.choice((0.0, 5.0, 20.0)), late=late)


def rows_of(seed: int, batch: int) -> Sequence[TimedRow]:
    """The rows of a batch: some far ahead of the others, some late, and now and then none."""
    chance = Random(f"{seed} rows {batch}")  # to be replayed
    return [
        TimedRow(
            number,
            chance.choice(ROW_KEYS),
            BEGIN_S + BATCH_S * batch + chance.choice((-60, -10, -3, 0, 0, 0, 2, 30)),
            chance.choice((None, None, -8.0, 0.0, 1.0, 6.0, 20.0, 80.0)),
            f"{batch}.{number}",
        )
        for number in range(chance.choice((0, 0, 1, 3, 8)))
    ]


def applied(
    plan: TimePlan, contents: dict[tuple[str, Key], object], rows: Sequence[TimedRow], before: JobTime, to_s: float
) -> tuple[JobTime, Sequence[Fired]]:
    """Apply the next batch to the contents, in plain Python; the time after it, and what it puts out.

    `to_s`: the time of the batch, where the clock goes by that.
    """
    if plan.kind == "event":
        to_s = max((row.at_s for row in rows), default=NOT_BEGUN) - plan.lateness_s
    now_s = max(before.now_s, to_s)
    after = JobTime(before.batch + 1, None if now_s == NOT_BEGUN else ClockMark(now_s, plan.kind))
    late = [row for row in rows if plan.kind == "event" and row.at_s < before.now_s and plan.late != "keep"]
    for row in rows:
        if row not in late:
            contents[RECENT, row.key] = row.text if after.clock is None else Stamped(row.text, now_s)
            if row.due_s is not None:
                _register(contents, row.key, due_at(plan, row.at_s, row.due_s, now_s, before.now_s))
    put_out: list[Fired] = [("late", row.key, float(row.at_s), None) for row in late if plan.late == "output"]
    return after, [*put_out, *_fire(contents, after)]


def _fire(contents: dict[tuple[str, Key], object], time: JobTime) -> Sequence[Fired]:
    fired: list[Fired] = []
    waiting = [(at_s, key) for (name, key), times in contents.items() if name == IDLE for at_s in _times(times)]
    heapq.heapify(waiting)
    while waiting and waiting[0][0] <= time.now_s:
        at_s, key = heapq.heappop(waiting)
        assert isinstance(key, str), "timed keys are text"
        contents[IDLE, key] = tuple(each for each in _times(contents[IDLE, key]) if each != at_s)
        count = number_of(contents.get((FIRED, key))) + 1
        contents[FIRED, key] = f"{count} {at_s}"
        if not count % 3 and _register(contents, key, at_s + AGAIN_S):
            heapq.heappush(waiting, (at_s + AGAIN_S, key))
        found = living({(RECENT, key): contents.get((RECENT, key), "")}, time.now_s, TTL_S)
        fired.append(("timer", key, at_s, text_of(found.get((RECENT, key))) or None))
    return fired


def _register(contents: dict[tuple[str, Key], object], key: str, at_s: float) -> bool:
    """Return true if there was no such timer."""
    times = _times(contents.get((IDLE, key), ()))
    contents[IDLE, key] = tuple(sorted({*times, at_s}))
    return at_s not in times


def _times(found: object) -> tuple[float, ...]:
    assert isinstance(found, tuple), "no times"
    return cast("tuple[float, ...]", found)


def number_of(fired: object) -> int:
    """How many timers have fired, by the text that is stored."""
    return 0 if fired is None else int(str(fired).partition(" ")[0])


def text_of(value: object) -> str | None:
    """The text itself."""
    return None if value is None else str(value.value if isinstance(value, Stamped) else value)


def due_at(plan: TimePlan, at_s: float, due_s: float, now_s: float, before_s: float) -> float:
    """The time of a timer for a row: none may be before the clock in the batch before."""
    return max((at_s if plan.kind == "event" else now_s) + due_s, before_s)


# ---------------------------------------------------------------------------------------------- with the library


class Dues(KeyedProcessor):
    """Stores the newest text of each key, registers timers, and counts those that fire."""

    output_schema = pa.schema({"what": pa.string(), "key": pa.string(), "at": pa.float64(), "text": pa.string()})

    def __init__(self, plan: TimePlan) -> None:
        self._plan = plan

    def open(self, context: ProcessorContext) -> None:
        self.recent = context.value_state(RECENT, str, ttl=TimeToLive(TTL_S))
        self.fired = context.value_state(FIRED, str)
        self.idle = context.timers(IDLE, self._plan.kind)

    def process(self, key: Any, rows: Iterable[Mapping[str, Any]], context: ProcessorContext) -> Processed:
        now_s, before_s = (NOT_BEGUN if each is None else each for each in (context.clock_s, context.clock_before_s))
        for row in rows:
            self.recent[key] = row["text"]
            if row["due"] is not None:
                at_s = row["at"].replace(tzinfo=dt.UTC).timestamp()
                self.idle.register(key, due_at(self._plan, at_s, row["due"], now_s, before_s))
        return None

    def process_late(self, key: Any, rows: Iterable[Mapping[str, Any]], context: ProcessorContext) -> Any:
        return [{"what": "late", "key": key, "at": row["at"].timestamp(), "text": None} for row in rows]

    def on_timer(self, key: Any, at: float, context: ProcessorContext) -> Any:
        count = number_of(self.fired.get(key)) + 1
        self.fired[key] = f"{count} {at}"
        if not count % 3:
            self.idle.register(key, at + AGAIN_S)
        return [{"what": "timer", "key": key, "at": at, "text": self.recent.get(key)}]


def open_runner(plan: TimePlan) -> ProcessorRunner:
    """The runner that a process applies to its batches."""
    return ProcessorRunner(Dues(plan), key="key", order_by="number", has_output=True, event_time=event_time_of(plan))


def event_time_of(plan: TimePlan) -> EventTime | None:
    """The column of times, if the clock goes by it."""
    return EventTime("at", plan.lateness_s, plan.late) if plan.kind == "event" else None


def table_of(rows: Sequence[TimedRow]) -> Any:
    """The rows as Spark would send them."""
    columns = {
        "number": pa.array([row.number for row in rows], pa.int64()),
        "key": pa.array([row.key for row in rows], pa.string()),
        "at": pa.array([row.at_s * 1_000_000 for row in rows], pa.timestamp("us", tz="UTC")),
        "due": pa.array([row.due_s for row in rows], pa.float64()),
        "text": pa.array([row.text for row in rows], pa.string()),
    }
    return pa.table(columns)


class TimedBatch(NamedTuple):
    """A batch as it is delivered, the time that it moves the clock to, and the time and the output after it."""

    table: Any
    kind: ClockKind
    to_s: float
    time: JobTime
    expected: Sequence[Fired]

    def story(self, before: JobTime, contents: Contents) -> str:
        """A line for a trace on the effects of the batch. `contents`: after it."""
        moves = "leaves" if self.time.clock == before.clock else "moves"
        late, fired = (sum(each[0] == what for each in self.expected) for what in ("late", "timer"))
        expired = len(contents) - len(living(contents, self.time.now_s, TTL_S))
        return f"batch {self.time.batch} {moves} the clock, {late} late, {fired} timers, {expired} have expired"

    def part(self, part: KeyGroupRange, groups: int) -> Any:
        """The rows whose keys are in `part`."""
        keys = self.table.column("key").to_pylist()
        return self.table.filter(pa.array([key_group(key, groups) in part for key in keys], pa.bool_()))


def next_batch(
    plan: TimePlan, seed: int, contents: dict[tuple[str, Key], object], before: JobTime, wall_s: float
) -> TimedBatch:
    """The batch after `before`, which is applied to `contents`. `wall_s`: the time at which it began."""
    rows = rows_of(seed, before.batch + 1)
    table, event_time = table_of(rows), event_time_of(plan)
    to_s = wall_s if event_time is None else event_time.latest_s(table)
    time, expected = applied(plan, contents, rows, before, wall_s)
    return TimedBatch(table, plan.kind, to_s, time, expected)


def put_out(table: Any) -> Sequence[Fired]:
    """The rows that a runner has put out."""
    return [(row["what"], row["key"], row["at"], row["text"]) for row in table.to_pylist()]


def assert_fired_once(found: Sequence[Fired], expected: Sequence[Fired], batch: int) -> None:
    """Each timer that is due fires, once, and what is late is put out once; with the values that have not expired."""
    assert sorted(found, key=repr) == sorted(expected, key=repr), f"batch {batch} put out {found}, not {expected}"


def assert_time(backend: KeyedBackend, contents: Contents, time: JobTime, plan: TimePlan, groups: int) -> None:
    """The backend shows the clock, and of its key groups just what has not expired, and every timer."""
    now_s = None if time.clock is None else time.clock.now_s
    assert backend.clock_s == now_s, f"the clock stands at {backend.clock_s} instead of {now_s}"
    found: dict[tuple[str, Key], object] = {}
    timers = backend.timers(IDLE, plan.kind)
    found |= {(IDLE, key): timers.registered(key) for key in timers}
    found |= {(FIRED, key): text for key, text in backend.value_state(FIRED, str).items()}
    recent = backend.value_state(RECENT, str, ttl=TimeToLive(TTL_S))
    if now_s is not None:
        found |= {(RECENT, key): text for key, text in recent.items()}
    assert_same_contents(found, timed_of(contents, time, backend.key_groups, groups), "the timed state")


def timed_of(contents: Contents, time: JobTime, part: KeyGroupRange, groups: int) -> Contents:
    """The timed states as a backend of `part` shows them at that time."""
    return {
        (name, key): text_of(value) if name == RECENT else value
        for (name, key), value in living(contents, time.now_s, TTL_S).items()
        if name in TIMED_STATES and key_group(key, groups) in part and (name != RECENT or time.clock is not None)
    }
