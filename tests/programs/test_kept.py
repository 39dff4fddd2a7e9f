"""Programs that once failed, as they were shrunk, and what was wrong. As values they outlive a change of the draws."""

import pytest

from tests.programs.program import (
    Batch,
    Declared,
    Do,
    Edit,
    Erase,
    Follow,
    Item,
    Job,
    Look,
    Program,
    Seed,
    SeedAnew,
    Slip,
    Start,
    Step,
    Transform,
)
from tests.programs.running import run

pytestmark = pytest.mark.usefixtures("quiet")


def one(job: Job, *batches: tuple[Item, ...], keys: str = "str", reader: str = "parts") -> Program:
    """A program of one run, with a look at the end."""
    return Program(keys, (Start(job), *map(Batch, batches), Look(reader)))


def of_map(names: str, step: Step) -> Program:
    """A map with two of these names, and what happens to it."""
    does = Do("m0", "put", 1, name=0), Do("m0", "put", 2, name=1)
    start = Start(Job(states=(Declared("m0", "map", "str", names),)))
    return Program("str", (start, Batch((Item(0, 0.0, does),)), step))


def seeded_anew(names: str) -> Program:
    return of_map(names, SeedAnew("files"))


def transformed(names: str) -> Program:
    return of_map(names, Transform(0, 2, 0, 1))


KEPT = {
    "a timer that another one deletes after it registered its own time again fires all the same": one(
        Job(states=(Declared("t1", "timers"),), output="async outbox", clock="event", lateness_s=3600.7),
        (
            Item(2, 1700000012.0, (Do("t1", "register", at_s=5.0),)),
            Item(2, 1700000016.0),
            Item(2, 1700000015.0, (Do("t1", "register", at_s=3.0),)),
        ),
        (Item(0, 1700000030.000001),),
    ),
    "names of a map that Python takes for equal are read as one": one(
        Job(states=(Declared("m0", "map", names="float"),)),
        (Item(0, 0.0, (Do("m0", "put", name=0), Do("m0", "put", 1, name=1))),),
    ),
    "a map with none among its names cannot be read": one(
        Job(states=(Declared("m0", "map", names="maybe text"),)),
        (Item(0, 0.0, (Do("m0", "put", name=0), Do("m0", "put", 1, name=1))),),
    ),
    "bases in RocksDB of several owners cannot be read": one(
        Job(
            states=(Declared("v0", "value"),),
            parallelism=3,
            settings={"table": "rocksdb", "materialize_handles_max": 1},
        ),
        *(tuple(Item(key, 0.0, (Do("v0", "put", 3),)) for key in range(8)) for _ in range(3)),
    ),
    "broadcast state is read once for each owner": one(
        Job(states=(Declared("b0", "broadcast"),), parallelism=3), tuple(Item(key, 0.0) for key in range(8))
    ),
    "broadcast state of an owner that is opened later is another than that of the others": one(
        Job(states=(Declared("b0", "broadcast"),), parallelism=3, output="outbox"),
        (Item(0, 0.0),),
        tuple(Item(key, 0.0) for key in range(8)),
    ),
    "a time-to-live cannot be given to a reader before the job has a time": one(
        Job(states=(Declared("v0", "value", ttl_s=20.0),), clock="event"), ()
    ),
    "the feed of a state that was emptied cannot be planned": Program(
        "tuple",
        (
            Start(Job(states=(Declared("v0", "value"),), settings={"checkpoints_retained": 9})),
            Batch((Item(0, 0.0, (Do("v0", "put", 1),)),)),
            Batch((Item(0, 0.0, (Do("v0", "put", 2),)),)),
            Batch((Item(0, 0.0, (Do("v0", "delete"),)),)),
            *(Look("feed", number) for number in range(3)),
        ),
    ),
    "keys stay in a commit whose output is still to be published when they are erased": Program(
        "str",
        (
            Start(Job(states=(Declared("v0", "value"),), output="outbox")),
            Batch((Item(1, 0.0, (Do("v0", "put", 1),)),)),
            Batch((Item(1, 0.0, (Do("v0", "put", 2),)),)),
            Erase((1,)),
        ),
    ),
    "a follower cannot read a state with a time-to-live before the job has a time": Program(
        "str",
        (
            Start(Job(states=(Declared("v0", "value", ttl_s=20.0),), clock="event")),
            Batch(),
            Follow(),
            Batch((Item(0, 0.0, (Do("v0", "put"),)),)),
        ),
    ),
    "a follower cannot read columns with a time-to-live before the job has it": Program(
        "str",
        (
            Start(Job(states=(Declared("c0", "columns", columns=("int",)),), clock="event")),
            Batch((Item(0, 0.0, (Do("c0", "put"),)),)),
            Follow(),
            Start(Job(states=(Declared("c0", "columns", columns=("int",), ttl_s=20.0),), clock="event")),
            Batch((Item(1, 30.0, (Do("c0", "put"),)),)),
        ),
    ),
    "a seed of a map with none among its names has no name but key": seeded_anew("maybe text"),
    "a map with records as names can be no seed": seeded_anew("stop"),
    "a transformation of a map with records as names ends in a TypeError": transformed("stop"),
    "a transformation of a map with names that Python takes for equal loses one": transformed("float"),
    "a reader that has read all says that it is at a fifth": one(
        Job(states=(Declared("c0", "columns", columns=("bool",)),)),
        (Item(0, 0.0, (Do("c0", "one"),)),),
        (),
        reader="rows",
    ),
    "values from before a time-to-live never expire": Program(
        "str",
        (
            Start(Job(states=(Declared("m0", "map"),), clock="event")),
            Batch((Item(0, 0.0, (Do("m0", "put"),)),)),
            Start(Job(states=(Declared("m0", "map", ttl_s=20.0),), clock="event")),
            Batch((Item(1, 10.0),)),
            Batch((Item(1, 29.0),)),
            Batch((Item(1, 31.0),)),
            Look("spark"),
        ),
    ),
    "the second part of a batch is dropped as a replay": Program(
        "str",
        (
            Start(Job(states=(Declared("v0", "value"),))),
            Batch((Item(0, 0.0),)),
            Slip("twice", Batch((Item(0, 0.0, (Do("v0", "put"),)), Item(1, 0.0, (Do("v0", "put", 1),))))),
            Look("spark"),
        ),
    ),
    "broadcast state of an owner that looked for timers while another began it stays empty": Program(
        "str",
        (
            Start(Job(states=(Declared("t0", "timers"),), clock="batch")),
            Seed(()),
            Start(
                Job(
                    states=(Declared("t0", "timers"), Declared("b1", "broadcast")),
                    parallelism=3,
                    output="function",
                    clock="batch",
                )
            ),
            Batch((Item(6, 0.0),)),
            Batch(tuple(Item(key, 0.0) for key in range(8))),
        ),
    ),
    "broadcast state that somebody has declared by hand is empty in every owner": Program(
        "str",
        (
            Start(Job(states=(Declared("b0", "broadcast"),), parallelism=3, output="function")),
            Edit((), first=True),
            Batch((Item(6, 0.0),)),
            Batch(tuple(Item(key, 0.0) for key in range(8))),
        ),
    ),
    "a change after the end of a backend is taken in silence": Program(
        "str",
        (
            Start(
                Job(
                    states=(
                        *(Declared(f"{kind[:1]}0", kind) for kind in ("value", "list", "map", "reducing", "split")),
                        Declared("a0", "aggregating"),
                        Declared("c0", "columns", columns=("int",)),
                        Declared("t0", "timers"),
                    ),
                    clock="event",
                )
            ),
            Batch((Item(0, 0.0, (Do("v0", "put"),)),)),
            Slip("closed backend", Batch((Item(1, 0.0),))),
        ),
    ),
    "another query is refused once it has fenced the one at work": Program(
        "str",
        (
            Start(Job(states=(Declared("v0", "value"),))),
            Batch((Item(0, 0.0),)),
            Slip("other query", Batch((Item(1, 0.0),))),
        ),
    ),
    "the same on executors": Program(
        "str",
        (
            Start(Job(states=(Declared("v0", "value"),), parallelism=2)),
            Batch((Item(0, 0.0),)),
            Slip("other query", Batch((Item(1, 0.0),))),
        ),
    ),
}


@pytest.mark.parametrize("program", KEPT.values(), ids=KEPT)
def test_what_once_was_wrong_is_right(program: Program) -> None:
    """The name says how it was wrong."""
    run(program)
