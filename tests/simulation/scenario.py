"""Everything a seed decides before the run: the job's settings, the weather of its stores, the end of each life."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final, Literal

import msgspec

from statebackend._backend.sweeping import AT_ONCE_EVERY
from statebackend.settings import KiB, MiB, Settings, UploadSettings
from tests.runs.heavy_rows import NEARLY, OUTGROWN
from tests.simulation.job import JOB
from tests.simulation.store import LATE_S, Weather

Ending = Literal["leaves", "crashes", "cancelled by scope", "cancelled by task", "cancelled by task twice"]
ENDINGS: Final[tuple[Ending, ...]] = (
    "leaves",
    "crashes",
    "cancelled by scope",
    "cancelled by task",
    "cancelled by task twice",
)

CALM: Final = Weather(latency_s=0.0005)
CALM_DISK: Final = Weather(latency_s=0.0002, disk=True)
DISK_CALL_MAX_S: Final = 2.0
"""Seconds within which even a bad disk answers: a thread that never returns could never be left."""
STORM_S: Final = 3.0
VERY_LATE_S: Final = 1500.0
"""Below the half hour that the rules of a sweep allow."""
NIGHT_S: Final = 100_000.0
"""Seconds of a night: more than a sweep's minimum age plus the clock skew that it allows for."""
SHORT_LIVES: Final = 0.125
"""The chance of a job that is opened again for each batch."""
SMALL_FROM: Final = 100_000
SMALL: Final = 0.875
"""The share of small jobs among the seeds from there on."""
SAVEPOINTS: Final[Sequence[str]] = ("blue", "green")


@dataclass(frozen=True, kw_only=True)
class HeirPlan:
    """How long a life follows the job before it takes it over, and how often it looks."""

    reads: int
    pause_s: float
    every_s: float


@dataclass(frozen=True, kw_only=True)
class LifePlan:
    """One life: its host, the commit it opens, its amount of work, and its end, unless it ended before."""

    number: int
    host: int | None
    branches: bool
    batches: int
    ending: Ending
    ends_after_s: float
    overlap_s: float | None
    """Seconds until the next life starts while this one becomes a zombie. `None`: it starts when this one has ended."""
    savepoint: str | None = None
    """The savepoint that it starts from, if there is one of that name."""
    parts: int = 0
    """Ranges that its work is cut into, as on executors; 0: it does all of it itself, as in a driver."""
    is_timeless: bool = False
    """True if it gets no timed rows, as a run of the program without them."""
    heir: HeirPlan | None = None
    """It follows the job, and takes it over, in place of opening it."""


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """One sweep, in a process of its own."""

    after_s: float
    """Seconds after the start of a life at which it starts."""
    lasts_s: float
    """Seconds after which it is cancelled."""
    min_age_s: float
    drops: str | None
    """The savepoint that is dropped before, if it exists."""


@dataclass(frozen=True, kw_only=True)
class KeepPlan:
    """A savepoint that is made of a commit that exists, by a process of its own."""

    after_s: float
    name: str
    place: float
    """Of which commit: 0 is the oldest that can be opened, and just below 1 the newest."""


@dataclass(frozen=True, kw_only=True)
class ReaderPlan:
    """Reads of single states, one after the other, by a process of its own."""

    after_s: float
    reads: int
    pause_s: float
    weather: Weather
    which: Literal["newest", "older", "savepoint"]


@dataclass(frozen=True, kw_only=True)
class Upkeep:
    """Work on the job beside its lives; none by default."""

    checkpoints_retained: int = 3
    sweep_interval_s: float = 0.0
    savepoints: float = 0.0
    """The chance that a checkpoint is to be a savepoint."""
    nights: frozenset[int] = frozenset()
    """Lives before which enough time passes for a sweep to find everything old."""
    sweeps: Mapping[int, SweepPlan] = field(default_factory=dict[int, SweepPlan])
    """Sweeps, by the number of the life beside which they start."""
    keeps: Mapping[int, KeepPlan] = field(default_factory=dict[int, KeepPlan])
    """Savepoints of commits that exist, by the number of the life beside which they are made."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Everything that is decided before the run."""

    settings: Settings
    weather: Weather
    disk: Weather
    damages: float
    """The chance that a local copy is damaged between two lives."""
    lives: tuple[LifePlan, ...]


def draw_scenario(chance: Random) -> Scenario:
    """Draw everything that is decided before the run."""
    settings = draw_settings(chance)
    weather = draw_weather(chance, settings)
    lives = tuple(draw_life(chance, number, weather) for number in range(chance.choice((1, 2, 3, 4, 5, 6, 8))))
    return Scenario(
        settings=settings,
        weather=weather,
        disk=draw_disk(chance),
        damages=chance.choice((0.0, 0.0, 0.3, 0.8)),
        lives=lives,
    )


def draw_settings(chance: Random) -> Settings:
    """Draw small bounds and short times, so that each is reached; the defaults among them."""
    in_flight = chance.choice((1, 100, 600, 100 * MiB))
    return Settings(
        job=JOB,
        primary="memory://simulated",
        max_parallelism=chance.choice((1, 3, 16, 128)),
        compression=chance.choice(("none", "lz4", "snappy", "zstd")),
        persist_delay_s=chance.choice((0.0, 0.001, 0.01, 0.2)),
        persist_size_threshold_bytes=min(in_flight, chance.choice((0, 60, 400, 10 * MiB))),
        preemptive_persist_threshold_bytes=chance.choice((0, 50, 300, 5 * MiB)),
        inline_bytes_max=chance.choice((0, 0, 300, 64 * KiB)),
        in_flight_bytes_max=in_flight,
        upload=UploadSettings(
            attempts_max=chance.choice((1, 2, 3, 3, 5)),
            timeout_s=chance.choice((0.0, 0.05, 0.3, 1.0)),
            retry_delay_s=chance.choice((0.0, 0.02, 0.5)),
            primary_outage_s=chance.choice((0.0, 0.0, 1.0, 8.0)),
        ),
        secondary_grace_s=chance.choice((0.0, 0.02, 0.5)),
        commit_timeout_s=chance.choice((0.1, 1.0, 30.0)),
        close_timeout_s=chance.choice((0.05, 1.0, 10.0)),
        local_bytes_max=chance.choice((0, 0, 500, 5000)),
        restore_concurrency_max=chance.choice((1, 2, 16)),
        cpu_threads_max=chance.choice((1, 2)),
        materialize_fan_in=chance.choice((0, 2, 3)),
        **draw_materialization(chance),
    )


def draw_table_kind(chance: Random) -> dict[str, Any]:
    """Draw if the columnar state is looked up in its bases and layers, always or once it outgrows its memory.

    Their files have no name here.
    """
    drawn = chance.random()
    if drawn >= 0.5:
        return {}
    if drawn < 0.33:
        return {"table": "runs", "table_memory_bytes": 4 * MiB, "table_dir": tempfile.gettempdir()}
    return {"state_memory_bytes": chance.choice((OUTGROWN, NEARLY)), "table_dir": tempfile.gettempdir()}


def draw_materialization(chance: Random) -> dict[str, Any]:
    """Draw if bases are written, and how soon. A third of the seeds writes none."""
    if chance.random() < 0.33:
        return {"materialize_interval_s": 0.0, "materialize_changelog_ratio": 0.0, "materialize_handles_max": 0}
    return {
        "materialize_interval_s": chance.choice((0.0, 0.02, 0.5, 600.0)),
        "materialize_changelog_ratio": chance.choice((0.0, 0.5, 2.0)),
        "materialize_changelog_bytes_min": chance.choice((0, 300, 4 * MiB)),
        "materialize_handles_max": chance.choice((0, 1, 2, 5)),
        "materialize_failures_max": chance.choice((0, 1, 3, 1000)),
        "materialize_retry_delay_s": chance.choice((0.0, 0.02, 10.0)),
        "materialize_changelog_changes_min": chance.choice((0, 3, 30)),
    }


def draw_weather(chance: Random, settings: Settings) -> Weather:
    """Draw the primary's weather. Every fifth is calm except for latency; none hangs if a life could wait for ever."""
    latency_s = chance.choice((0.0, 0.001, 0.005, 0.05))
    if chance.random() < 0.2:
        return Weather(latency_s=latency_s)
    storms = [chance.uniform(0, 5) for _ in range(chance.choice((0, 0, 1, 3)))]
    return Weather(
        latency_s=latency_s,
        slow=chance.choice((0.0, 0.02, 0.2)),
        fails=chance.choice((0.0, 0.02, 0.1, 0.3)),
        loses=chance.choice((0.0, 0.02, 0.1, 0.3)),
        hangs=chance.choice((0.0, 0.02, 0.1)) if settings.upload.timeout_s > 0 else 0.0,
        refuses=chance.choice((0.0, 0.0, 0.01)),
        storms=tuple((begin, begin + chance.uniform(0, STORM_S)) for begin in storms),
        late=chance.random() < 0.1,
    )


def draw_disk(chance: Random) -> Weather:
    """Draw the local roots' weather: slower than a call may take, but never silent."""
    latency_s = chance.choice((0.0, 0.0002, 0.01))
    if chance.random() < 0.3:
        return Weather(latency_s=latency_s, disk=True)
    return Weather(
        latency_s=latency_s,
        slow=chance.choice((0.0, 0.05, 0.3)),
        slow_factor=DISK_CALL_MAX_S / 0.1,
        fails=chance.choice((0.0, 0.05, 0.3)),
        loses=chance.choice((0.0, 0.05)),
        disk=True,
    )


def draw_life(chance: Random, number: int, weather: Weather) -> LifePlan:
    """Draw a life that ends early or late, compared with the time its requests take."""
    return LifePlan(
        number=number,
        host=chance.choice((0, 0, 0, 0, 1, None)),
        branches=chance.random() < 0.15,
        batches=chance.choice((1, 3, 6, 12)),
        ending=chance.choices(ENDINGS, (30, 30, 15, 15, 10))[0],
        ends_after_s=chance.expovariate(1.0) * (0.001 + weather.latency_s) * chance.choice((10, 100, 1000)),
        overlap_s=chance.expovariate(1.0) * (0.001 + weather.latency_s) * 30 if chance.random() < 0.3 else None,
    )


def draw_short_lives(chance: Random, scenario: Scenario) -> Scenario:
    """Draw, for every eighth seed, more lives of one batch than openings between two sweeps at once, and early bases.

    With `chance` of its own: the other seeds are unaffected.
    """
    if chance.random() >= SHORT_LIVES:
        return scenario
    lives = tuple(
        replace(
            draw_life(chance, number, scenario.weather),
            batches=1,
            branches=False,
            overlap_s=None,
            ending=chance.choice(("leaves", "leaves", "leaves", "crashes")),
        )
        for number in range(chance.randint(AT_ONCE_EVERY + 2, 2 * AT_ONCE_EVERY))
    )
    settings = msgspec.structs.replace(scenario.settings, materialize_handles_max=chance.choice((2, 5)))
    weather = chance.choice((scenario.weather, CALM))
    return replace(scenario, settings=settings, lives=lives, weather=weather)


def draw_small(chance: Random, seed: int, scenario: Scenario) -> Scenario:
    """Draw a small job for most of the seeds from `SMALL_FROM` on: two or three short lives and few key groups.

    It costs a third of the time. Its lives end sooner and overlap more often, and disks are damaged between them, or
    less would go wrong in it.
    """
    if seed < SMALL_FROM or chance.random() >= SMALL:
        return scenario
    weather = replace(scenario.weather, late=scenario.weather.late or chance.random() < 0.3)
    turn_s = 0.001 + weather.latency_s
    lives = tuple(
        replace(
            draw_life(chance, number, weather),
            batches=chance.choice((1, 2, 2, 3)),
            ending=chance.choices(ENDINGS, (10, 50, 15, 15, 10))[0],
            ends_after_s=chance.expovariate(1.0) * turn_s * chance.choice((10, 30, 100)),
            overlap_s=chance.expovariate(1.0) * turn_s * 30 if chance.random() < 0.5 else None,
        )
        for number in range(chance.choice((2, 2, 3)))
    )
    settings = msgspec.structs.replace(scenario.settings, max_parallelism=chance.choice((1, 2, 3)))
    return replace(scenario, settings=settings, lives=lives, weather=weather, damages=chance.choice((0.3, 0.8)))


def draw_lateness(chance: Random, scenario: Scenario) -> Scenario:
    """Draw, for every fourth seed, requests that arrive minutes late, with `chance` of their own."""
    late_max_s = chance.choice((LATE_S, LATE_S, LATE_S, VERY_LATE_S))
    return replace(scenario, weather=replace(scenario.weather, late_max_s=late_max_s))


def draw_ways(chance: Random, scenario: Scenario, *, savepoints: float) -> Scenario:
    """Draw which lives work in ranges, start from savepoints, or go without timed rows, with `chance` of their own."""
    share = chance.choice((0.0, 0.5, 1.0))
    parts = [each for each in (1, 2, 3, 5, 5) if each <= scenario.settings.max_parallelism]
    lives = tuple(
        replace(
            life,
            parts=chance.choice(parts) if chance.random() < share else 0,
            savepoint=chance.choice(SAVEPOINTS) if savepoints and chance.random() < 0.2 else None,
            is_timeless=chance.random() < 0.15,
        )
        for life in scenario.lives
    )
    return replace(scenario, lives=lives)


def draw_heirs(chance: Random, scenario: Scenario) -> Scenario:
    """Draw, for two thirds of the seeds, lives that follow those before them, mostly while these are still at work.

    In a third of the seeds one of them lives to take the job over.
    """
    if chance.random() < 0.33 or len(scenario.lives) < 2:
        return scenario
    turn_s = 0.001 + scenario.weather.latency_s
    sure, lives = chance.randrange(1, len(scenario.lives)), list(scenario.lives)
    for number in range(1, len(lives)):
        if number != sure and chance.random() < 0.6:
            continue
        former, life = lives[number - 1 : number + 1]
        plan = HeirPlan(
            reads=chance.choice((0, 3, 20, 40)),
            pause_s=chance.expovariate(1.0) * turn_s * chance.choice((5, 20)),
            every_s=turn_s * chance.choice((0.5, 3, 30)),
        )
        ends_after_s = life.ends_after_s + 10 * turn_s + plan.reads * plan.pause_s
        ending = chance.choice((life.ending, "leaves"))
        life = replace(life, host=None, branches=False, savepoint=None, parts=0)  # a follower opens the newest commit
        lives[number] = replace(life, heir=plan, ending=ending, ends_after_s=ends_after_s)
        if chance.random() < 0.8:
            overlap_s = chance.expovariate(1.0) * turn_s * chance.choice((3, 10, 30))
            ending = chance.choice((former.ending, "leaves"))
            lives[number - 1] = replace(former, overlap_s=overlap_s, batches=max(former.batches, 6), ending=ending)
    return replace(scenario, lives=tuple(lives))


def draw_readers(chance: Random, scenario: Scenario) -> Mapping[int, ReaderPlan]:
    """Draw readers for half of the seeds, by the number of the life beside which they start."""
    if chance.random() < 0.5:
        return {}
    return {life.number: draw_reader(chance, scenario.weather) for life in scenario.lives if chance.random() < 0.5}


def draw_followers(chance: Random, scenario: Scenario) -> Mapping[int, ReaderPlan]:
    """Draw those who follow the change feed, for a third of the seeds, by the number of a life as the readers."""
    if chance.random() < 0.67:
        return {}
    plans = {life.number: draw_reader(chance, scenario.weather) for life in scenario.lives if chance.random() < 0.3}
    return {number: replace(plan, reads=chance.choice((5, 15))) for number, plan in plans.items()}


def draw_reader(chance: Random, weather: Weather) -> ReaderPlan:
    """Draw a reader: quick, slow, or one for which a night passes between two requests."""
    slow_s = chance.choice((weather.latency_s, weather.latency_s, 0.3, 20.0, NIGHT_S / 3))
    return ReaderPlan(
        after_s=chance.expovariate(1.0) * (0.001 + weather.latency_s) * chance.choice((1, 10, 100)),
        reads=chance.choice((1, 3, 10)),
        pause_s=chance.choice((0.0, 0.01, 0.5, NIGHT_S / 5)),
        weather=replace(chance.choice((weather, CALM)), latency_s=slow_s),
        which=chance.choice(("newest", "newest", "older", "savepoint")),
    )


def draw_upkeep(chance: Random, lives: Sequence[LifePlan], weather: Weather) -> Upkeep:
    """Draw sweeps, savepoints and nights for half of the seeds, with `chance` of their own: the rest is unaffected."""
    if chance.random() < 0.5:
        return Upkeep()
    upkeep = Upkeep(
        checkpoints_retained=chance.choice((1, 2, 3, 3)),
        sweep_interval_s=chance.choice((0.0, 0.0, 0.05, 1.0)),
        savepoints=chance.choice((0.0, 0.1, 0.4)),
        nights=frozenset(life.number for life in lives if chance.random() < 0.4),
        sweeps={life.number: draw_sweep(chance, weather) for life in lives if chance.random() < 0.5},
    )
    keeping = chance.choice((0.0, 0.5)) if upkeep.savepoints else 0.0
    keeps = {life.number: draw_keep(chance, weather) for life in lives if chance.random() < keeping}
    return replace(upkeep, keeps=keeps)


def draw_keep(chance: Random, weather: Weather) -> KeepPlan:
    """Draw a savepoint of a commit that exists."""
    return KeepPlan(
        after_s=chance.expovariate(1.0) * (0.001 + weather.latency_s) * chance.choice((1, 10, 100)),
        name=chance.choice(SAVEPOINTS),
        place=chance.choice((0.999, chance.random())),
    )


def draw_sweep(chance: Random, weather: Weather) -> SweepPlan:
    """Draw a sweep that meets a life at work, or its leftovers."""
    turn_s = 0.001 + weather.latency_s
    return SweepPlan(
        after_s=chance.expovariate(1.0) * turn_s * chance.choice((1, 10, 100)),
        lasts_s=chance.expovariate(1.0) * turn_s * chance.choice((10, 1000)) + chance.choice((0.0, 10.0)),
        min_age_s=chance.choice((0.0, 3600.0)),
        drops=chance.choice((None, *SAVEPOINTS)),
    )
