"""A program: what a user writes and what then happens to it, as a value that is drawn from a seed and printed as code.

    Program     = keys of one type, and steps
    step        = Start: a run of the job, with its declarations and settings | Batch | Edit | Rewind | Slip | ...
    batch       = rows, each with what the processor does to the states of its key; and a mishap

Numbers stand for values: `Do("v1", "put", 3)` puts the fourth value of the state's type, see `values.py`.
"""

from typing import Any, Literal

import msgspec

import statebackend as sb

Kind = Literal["value", "list", "map", "reducing", "aggregating", "columns", "timers", "split", "broadcast", "union"]
OPERATOR = ("split", "broadcast", "union")
"""The kinds that have no keys."""
Work = Literal["process", "async process", "table", "function", "async function"]
Mishap = Literal[
    "",
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
]
Stop = Literal["closed", "left open", "killed", "taken over"]
"""How a run ends. Taken over: the next one has stood by for it, and claims the job with its first batch."""
Weather = Literal["", "store fails", "answers lost", "store refuses", "killed at a request"]
"""What an action beside the stream meets; it is repeated in fine weather then."""


class Shown(msgspec.Struct, frozen=True):
    """Prints what differs from the defaults, as code."""

    def __repr__(self) -> str:
        given = [
            f"{field.name}={value!r}"
            for field in msgspec.structs.fields(self)
            if (value := getattr(self, field.name)) != field.default
        ]
        return f"{type(self).__name__}({', '.join(given)})"


class Declared(Shown, frozen=True):
    """A state. `type` of its values, or `columns` by their types; `names`: type of the names in a map."""

    name: str
    kind: Kind
    type: str = "int"
    names: str = "str"
    columns: tuple[str, ...] = ()
    ttl_s: float | None = None
    on_read: bool = False
    default: bool = False
    version: int = 0


class Do(Shown, frozen=True):
    """One operation on the state of the row's key. `at_s`: seconds after the clock, of a timer."""

    state: str
    op: str
    value: int = 0
    name: int = 0
    at_s: float = 0.0


class Item(Shown, frozen=True):
    """A row: the number of its key, its time, and what it does."""

    key: int
    at_s: float
    does: tuple[Do, ...] = ()


class Job(Shown, frozen=True):
    """How a run is written and set up. `settings`: those of `Settings` that are not the default."""

    work: Work = "process"
    states: tuple[Declared, ...] = ()
    parallelism: int = 0
    """0: in the driver."""
    output: Literal["none", "function", "outbox", "async outbox"] = "none"
    clock: Literal["none", "event", "batch"] = "none"
    lateness_s: float = 0.0
    late: Literal["drop", "keep", "output"] | None = None
    zone: str = "UTC"
    zone_told: bool = False
    """True if the sink is told the zone, since the one before it had another."""
    times: Literal["instant", "naive"] = "instant"
    concurrency: int | None = None
    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    on_rewind: Literal["fail", "rollback"] = "fail"
    savepoint: str | None = None
    adopt: bool = False

    def ttl(self, state: Declared) -> sb.TimeToLive | None:
        return None if state.ttl_s is None else sb.TimeToLive(state.ttl_s, on_read=state.on_read)


class Start(Shown, frozen=True):
    """The next run: how the one before has ended, and the job as it is now."""

    job: Job
    after: Stop = "closed"


class Batch(Shown, frozen=True):
    """Spark delivers the next batch, in pieces of so many rows. After a mishap a new run delivers it again.

    `fate`: says which requests meet the weather, or which of them is the last before the process is killed.
    """

    items: tuple[Item, ...] = ()
    mishap: Mishap = ""
    pieces: int = 0
    fate: int = 0


class Edit(Shown, frozen=True):
    """A person opens the job, changes states of some keys and commits, so many times.

    `first`: also where the job has no commit yet. `skipped`: so many ids of checkpoints are left out.
    """

    items: tuple[Item, ...]
    commits: int = 1
    first: bool = False
    skipped: int = 0


class Follow(Shown, frozen=True):
    """Somebody follows the job from now on, or its first key groups alone; looked through after each step.

    `every_s`: seconds between two looks. In bad weather the follower's requests fail, and nobody else's.
    """

    every_s: float = 3600.0
    part: int = 0
    pin: bool = False
    weather: Weather = ""


class Mirror(Shown, frozen=True):
    """A state is mirrored into a folder of Parquet from now on: after each `lag` steps, and in the end, it catches up.

    `as_json`: keys as text. `in_sink`: the sink mirrors it as well. `anew`: from the whole state, now and then.
    """

    state: int = 0
    lag: int = 1
    as_json: bool = False
    in_sink: bool = False
    anew: bool = False
    weather: Weather = ""
    fate: int = 0


class PutBack(Shown, frozen=True):
    """The primary and Spark's checkpoint are put back by a batch, which came again with other rows on another host.

    The first host's local disks stay as they were: then they have files of a run that went another way.
    """

    batch: Batch = Batch()
    other: Batch = Batch()


class Heir(Shown, frozen=True):
    """The driver seems to be lost: a follower takes the job over, and commits by hand. The driver is alive, and fenced.

    `batch`: what the driver tries then. `twice`: the follower is promoted again, and asked once it is no follower.
    """

    items: tuple[Item, ...]
    batch: Batch = Batch()
    commits: int = 1
    skipped: int = 0
    twice: bool = False
    weather: Weather = ""
    fate: int = 0


class Erase(Shown, frozen=True):
    """Some keys are erased, from all states or the first; then what is old is swept, and proved that they are gone.

    `drops`: savepoints that have them may go. `beside`: the stream was not stopped; its next batch is this one.
    """

    keys: tuple[int, ...]
    one_state: bool = False
    drops: bool = True
    beside: Batch | None = None
    weather: Weather = ""
    fate: int = 0


class Savepoint(Shown, frozen=True):
    """The newest commit gets a name; `asked`: the commit of this next batch, for which the sink is asked."""

    name: str
    asked: Batch | None = None


class Upkeep(Shown, frozen=True):
    """A sweep, a repair, or a verification; beside the run."""

    what: Literal["sweep", "repair", "verify", "drop savepoints"]
    weather: Weather = ""
    fate: int = 0


class Rewind(Shown, frozen=True):
    """Spark's checkpoint is put back by so many batches, and what it delivers then has these rows."""

    back: int
    batch: Batch = Batch()


class Clone(Shown, frozen=True):
    """A new job is made of the newest commit, as such or by its moment, or of a savepoint, with a share of the keys.

    `goes_on`: the stream is stopped, and goes on as the clone, which publishes what was not published.
    """

    of: Literal["newest", "moment", "savepoint"] = "newest"
    share: float = 1.0
    goes_on: bool = False
    leaves_output: bool = False
    weather: Weather = ""
    fate: int = 0


class Seed(Shown, frozen=True):
    """Before the first batch the job gets a state: what these rows do, at this time if it has a clock.

    `starts`: it says where the stream has to begin, and so must the sink.
    """

    items: tuple[Item, ...]
    clock_s: float = 1_700_000_000.0
    starts: bool = False
    weather: Weather = ""
    fate: int = 0


class SeedAnew(Shown, frozen=True):
    """A new job is seeded with what this one holds: plain pairs, what `read_state` gives, or files of `export`.

    `goes_on`: the stream goes on as the new job, with another Spark checkpoint.
    """

    form: Literal["pairs", "columns", "files"] = "pairs"
    goes_on: bool = False
    weather: Weather = ""
    fate: int = 0


class Transform(Shown, frozen=True):
    """The stream is stopped, and a state is changed by a function: one key is dropped, and one gets another key.

    Where there is such a key already it is refused, and nothing has changed.
    """

    state: int
    dropped: int
    moved: int
    to: int
    weather: Weather = ""
    fate: int = 0


class Rewrite(Shown, frozen=True):
    """The stream is stopped, and the job gets so many key groups: its newest commit, or that of a savepoint."""

    groups: int
    savepoint: str = ""
    weather: Weather = ""
    fate: int = 0


class Adopt(Shown, frozen=True):
    """The query gets another Spark checkpoint, and so another id and a first batch, and goes on with the state.

    `times`: as often. `returns`: and then the query before that comes back with its next batch.
    """

    batch: Batch = Batch()
    times: int = 1
    returns: bool = False


class FromSavepoint(Shown, frozen=True):
    """The next run starts from a savepoint, with the Spark checkpoint that goes with it."""

    name: str
    batch: Batch = Batch()


class Slip(Shown, frozen=True):
    """Somebody does something wrong, and goes on rightly after the error that this must be."""

    what: str
    batch: Batch = Batch()


class Look(Shown, frozen=True):
    """Everything that this reader can read is compared. In bad weather it may fail instead, but tell nothing wrong."""

    reader: str
    number: int = 0
    weather: str = ""


Step = (
    Start
    | Batch
    | Edit
    | Savepoint
    | Upkeep
    | Rewind
    | Rewrite
    | Adopt
    | FromSavepoint
    | Slip
    | Look
    | Follow
    | Mirror
    | Heir
    | Erase
    | Clone
    | Seed
    | SeedAnew
    | Transform
    | PutBack
)


class Program(Shown, frozen=True):
    """`keys`: the type of the keys, in so many key groups. The first step is a `Start`.

    `bounds`: the number that small bounds are drawn by; `None` for those of the library.
    """

    keys: str
    steps: tuple[Step, ...]
    groups: int = 128
    bounds: int | None = None

    def code(self) -> str:
        """As code, a step on each line."""
        steps = "".join(f"\n        {step!r}," for step in self.steps)
        rest = f"groups={self.groups},\n    bounds={self.bounds}"
        return f"Program(\n    keys={self.keys!r},\n    steps=({steps}\n    ),\n    {rest},\n)"
