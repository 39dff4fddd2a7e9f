"""Which values of which dimensions have met in one program: the coverage of what is drawn, by pairs.

`traits` says what a program has, as `dimension: value`. A pair is two of these in one program, such as two kinds of
state, or a kind of state and a mishap. `IMPOSSIBLE` has the pairs that no program can have.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import combinations

from tests.programs.program import (
    Adopt,
    Batch,
    Clone,
    Edit,
    Erase,
    Follow,
    Look,
    Mirror,
    Program,
    Savepoint,
    Seed,
    SeedAnew,
    Slip,
    Start,
    Step,
    Upkeep,
)

IMPOSSIBLE: frozenset[tuple[str, str]] = frozenset(
    {
        ("clock: none", "kind: timers"),
        ("clock: none", "op: register"),
        *(("clock: none", f"{one}") for one in ("ttl: on read", "ttl: on write")),
        *((f"clock: {one}", f"late: {late}") for one in ("none", "batch") for late in ("drop", "keep", "output")),
        *((f"clock: {one}", f"clock: {other}") for one, other in combinations(("batch", "event", "none"), 2)),
        ("times: instant", "times: naive"),
        *combinations(("beside: edit at first", "beside: seed", "beside: seed with a start"), 2),
        *((f"bad weather: {seed}", "beside: edit at first") for seed in ("seed", "seed with a start")),
        *combinations((f"keys: {each}" for each in ("bytes", "int", "str", "tuple")), 2),
        *combinations(sorted(f"groups: {each}" for each in (3, 128, 255, 256, 257, 32_768)), 2),
    }
)
"""A job keeps its clock, its keys and the type of its times for ever. All else may differ from run to run."""


def traits(program: Program) -> frozenset[str]:
    """What the program has."""
    return frozenset(_traits(program))


def _traits(program: Program) -> Iterator[str]:
    yield f"keys: {program.keys}"
    yield f"groups: {program.groups}"
    yield f"bounds: {'small' if program.bounds is not None else 'usual'}"
    for step in program.steps:
        match step:
            case Start():
                yield from _of_job(step)
            case Batch():
                yield f"rows: {('0', '1', 'some', 'many')[sum(len(step.items) > most for most in (0, 1, 16))]}"
                yield f"pieces: {step.pieces or 'one'}"
                yield f"mishap: {step.mishap or 'none'}"
                yield from (f"op: {do.op}" for item in step.items for do in item.does)
            case _:
                yield from _beside(step)


def _beside(step: Step) -> Iterator[str]:
    if isinstance(step, Slip):
        yield f"slip: {step.what}"
        return
    yield f"beside: {(name := _name_of(step))}"
    if getattr(step, "weather", ""):
        yield f"bad weather: {name}"


def _name_of(step: Step) -> str:  # noqa: C901  # a line for each
    name = type(step).__name__.lower()
    match step:
        case Edit():
            name += " at first" if step.first else f" x {step.commits}"
        case Upkeep():
            name = step.what
        case Follow(part=part, pin=pin):
            name += " a part" * bool(part) + " with a pin" * pin
        case Mirror(as_json=as_json, in_sink=in_sink):
            name += " in JSON" * as_json + " by the sink" * in_sink
        case Erase(beside=Batch()):
            name += " beside a stream"
        case Erase(drops=False):
            name += " and drop no savepoint"
        case Clone(of=of):
            name += f" of {of}" + " to go on" * (step.goes_on and step.share == 1.0)
        case Seed(starts=True):
            name += " with a start"
        case Adopt(times=times) if times > 1:
            name += " and return" if step.returns else " many times"
        case SeedAnew(form=form):
            name = f"seed with {form}" + " to go on" * step.goes_on
        case Look():
            name = f"look at {step.reader}"
        case Savepoint(asked=Batch()):
            name += " asked of the sink"
    return name


def _of_job(step: Start) -> Iterator[str]:
    job = step.job
    yield f"after: {step.after}"
    yield f"work: {job.work}"
    yield f"place: {'executors' if job.parallelism else 'driver'}"
    yield f"owners: {job.parallelism or 'driver'}"
    yield f"output: {job.output}"
    yield f"clock: {job.clock}"
    yield f"zone: {job.zone}"
    if job.zone_told:
        yield "zone: another than before"
    yield f"on_rewind: {job.on_rewind}"
    yield f"times: {job.times}"
    if job.late is not None:
        yield f"late: {job.late}"
    for name, value in {"table": "heap", **job.settings}.items():
        yield f"{name}: {value}"
    for state in job.states:
        yield f"kind: {state.kind}"
        if state.kind in ("value", "list", "map", "reducing"):
            yield f"type: {state.type}"
        if state.kind == "map":
            yield f"names: {state.names}"
        if state.ttl_s is not None:
            yield f"ttl: {'on read' if state.on_read else 'on write'}"
        yield from (f"type: {column} column" for column in state.columns)


class Pairs:
    """Counts in how many programs two traits have met."""

    def __init__(self) -> None:
        self.traits = Counter[str]()
        self.met = Counter[tuple[str, str]]()

    def note(self, program: Program) -> None:
        found = sorted(traits(program))
        self.traits.update(found)
        self.met.update(combinations(found, 2))

    def add(self, other: "Pairs") -> None:
        self.traits.update(other.traits)
        self.met.update(other.met)

    def possible(self) -> Iterator[tuple[str, str]]:
        """All pairs of the traits that were seen, but for those that cannot be."""
        return (pair for pair in combinations(sorted(self.traits), 2) if pair not in IMPOSSIBLE)

    def missing(self) -> list[tuple[str, str]]:
        return [pair for pair in self.possible() if pair not in self.met]

    def share(self) -> float:
        possible = list(self.possible())
        return sum(pair in self.met for pair in possible) / max(1, len(possible))

    def lines(self, longest: int = 40) -> Iterable[str]:
        missing, possible = self.missing(), sum(1 for _ in self.possible())
        met = possible - len(missing)
        yield f"{met:,} of {possible:,} pairs of {len(self.traits)} traits have met: {self.share():.2%}"
        yield from (f"  never: {one} | {other}" for one, other in missing[:longest])
