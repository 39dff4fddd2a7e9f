"""A small cluster of two executor processes, parts of which are killed: the result is that of one pass over the input.

The short form runs with all tests. The long one (`nox -s spark`) runs for many batches, at random, and on real data
where it is there.
"""

import asyncio
import os
import random
import time
from collections import Counter

import msgspec
import pytest

import statebackend as sb
from tests.spark.cluster import Driver, assert_equals_one_pass
from tests.spark.cluster_child import Plan, settings_of
from tests.spark.retail import DATA_SET, made_up, of_data_set, write
from tests.spark.standalone import SPECULATION, standalone_cluster

CLUSTER = "local-cluster[2,1,1024]"
LONG = "STATEBACKEND_SPARK_LONG"
"""The environment variable that asks for the long form: how many batches."""
BATCHES = int(os.environ.get(LONG, "100"))
KILL_CHANCE = 0.08
"""Of each thing that a driver tells."""
MOMENT_MAX_S = 1.0

pytestmark = pytest.mark.spark
only_long = pytest.mark.skipif(LONG not in os.environ, reason=f"takes many minutes: nox -s spark, or set {LONG}=100")


def test_workers_and_executors_are_killed_and_the_query_goes_on(tmp_path) -> None:
    """A Python worker, then the JVM of an executor, while their batches run, and tasks that fail by themselves in two.

    Spark makes other attempts. With `clock="batch"` all attempts of a batch have the time that is in its commit.
    """
    days = made_up(6, lines=200, seed=1)
    write(days, tmp_path / "days")
    plan = Plan(str(tmp_path), "customers", CLUSTER, parallelism=3, fails_in=(2, 4), clock="batch")
    victims = {"1": "worker", "3": "executor"}
    killed = []
    with Driver(plan) as driver:
        for what, value in driver.told():
            if what == "begun" and value in victims and driver.kill_one(victims[value], random.Random(2)):
                killed.append(victims[value])
        assert driver.status == 0
    assert killed == ["worker", "executor"]
    assert (tmp_path / "failed-2").exists()
    assert (tmp_path / "failed-4").exists()
    assert_equals_one_pass(plan, days)
    clocks = [[path.read_text() for path in tmp_path.glob(f"clock-{number}-*")] for number in range(len(days))]
    assert all(len(clocks[number]) > plan.parallelism for number in plan.fails_in)
    committed = asyncio.run(clocks_committed(plan))
    assert [set(each) for each in clocks] == [{str(each)} for each in committed]
    assert committed == sorted(set(committed))


async def clocks_committed(plan: Plan) -> list[float | None]:
    """The job's clock in each of its commits, oldest first."""
    async with sb.open_backend(settings_of(plan), read_only=True) as backend:
        return [commit.clock and commit.clock.now_s async for commit in backend.history()][::-1]


def run_through_kills(plan: Plan, rng: random.Random, *, kills: int) -> Counter[str]:
    """Run drivers until one comes to the end. Each is another attempt with another number of ranges.

    At `kills` random moments something is killed: a worker, an executor, or the driver itself.
    """
    killed: Counter[str] = Counter()
    while True:
        with Driver(plan) as driver:
            for what, _ in driver.told():
                if what == "finished":
                    return killed
                if killed.total() == kills or rng.random() > KILL_CHANCE:
                    continue
                time.sleep(rng.random() * MOMENT_MAX_S)
                victim = rng.choice(["worker", "worker", "executor", "driver"])
                if victim == "driver":
                    driver.kill()
                    killed["driver"] += 1
                elif driver.kill_one(victim, rng):
                    killed[victim] += 1
        plan = msgspec.structs.replace(plan, parallelism=rng.randint(1, 5))
        print(f"another driver, after {dict(killed)}", flush=True)


@only_long
@pytest.mark.parametrize(
    ("which", "master", "table", "outbox"),
    [
        ("customers", CLUSTER, "heap", True),
        ("products", CLUSTER, "rocksdb", False),
        ("customers", "local[2]", "heap", False),
    ],
)
def test_many_batches_with_kills_at_random_moments(tmp_path, which, master, table, outbox) -> None:
    """Of workers, executors and drivers, which come back with another number of ranges."""
    seed = int(os.environ.get("SEED", "1"))
    days = made_up(BATCHES, lines=300, seed=seed)
    write(days, tmp_path / "days")
    plan = Plan(str(tmp_path), which, master, parallelism=4, table=table, outbox=outbox)
    killed = run_through_kills(plan, random.Random(seed), kills=BATCHES * 2 // 5)
    print(f"killed with seed {seed}: {dict(killed)}")
    assert_equals_one_pass(plan, days)


@only_long
def test_speculative_attempts_count_once(tmp_path) -> None:
    """On two hosts Spark makes another attempt at a task that is slow. Both come to an end, and one is committed."""
    days = made_up(6, lines=200, seed=4)
    write(days, tmp_path / "days")
    with standalone_cluster(tmp_path) as master:
        plan = Plan(str(tmp_path), "customers", master, parallelism=3, conf=SPECULATION, slow_in=(1, 3, 4))
        with Driver(plan) as driver:
            for _ in driver.told():
                pass
            assert driver.status == 0
    assert all((tmp_path / f"twin-{batch}").exists() for batch in plan.slow_in)
    assert_equals_one_pass(plan, days)


@only_long
@pytest.mark.skipif(DATA_SET not in os.environ, reason=f"set {DATA_SET} to the folder of the data set")
@pytest.mark.parametrize("which", ["customers", "products"])
def test_the_days_of_a_real_shop(tmp_path, which) -> None:
    """With all their warts, and kills now and then."""
    days = of_data_set(BATCHES)
    write(days, tmp_path / "days")
    plan = Plan(str(tmp_path), which, CLUSTER, parallelism=4)
    run_through_kills(plan, random.Random(7), kills=BATCHES // 10)
    assert_equals_one_pass(plan, days)


@only_long
def test_workers_that_were_idle_for_more_than_a_minute(tmp_path) -> None:
    """Spark ends them: what they had in memory is gone, and what the next ones find is right."""
    days = made_up(6, lines=200, seed=3)
    write(days, tmp_path / "days")
    plan = Plan(str(tmp_path), "customers", "local[2]", parallelism=2, pauses_s={2: 75.0})
    with Driver(plan) as driver:
        found = [value for what, value in driver.told() if what == "found"]
        assert driver.status == 0
    assert found.count("new") == 2
    assert found[6:8] != ["process", "process"]
    assert_equals_one_pass(plan, days)


@only_long
def test_a_driver_that_was_away_is_fenced_when_it_comes_back(tmp_path) -> None:
    """Another one has taken its job and its Spark checkpoint over meanwhile; the first commits nothing more."""
    days = made_up(12, lines=200, seed=4)
    write(days, tmp_path / "days")
    plan = Plan(str(tmp_path), "customers", "local[2]", parallelism=2)
    with Driver(plan) as first:
        told = first.told()
        assert next(value for what, value in told if (what, value) == ("begun", "3")) == "3"
        first.halt()
        with Driver(msgspec.structs.replace(plan, parallelism=3)) as second:
            assert ("finished", "None") in second.told()
        first.halt(go_on=True)
        assert "finished" not in [what for what, _ in told]
        assert first.status != 0
    assert "FencedError" in (tmp_path / "errors").read_text()
    assert_equals_one_pass(plan, days)


@only_long
def test_a_range_stays_where_its_state_is(tmp_path) -> None:
    """By the anchor: on a quiet cluster each range is found warm in its process from the second batch on."""
    days = made_up(10, lines=200, seed=5)
    write(days, tmp_path / "days")
    plan = Plan(str(tmp_path), "customers", CLUSTER, parallelism=4)
    with Driver(plan) as driver:
        found = Counter(value for what, value in driver.told() if what == "found")
        assert driver.status == 0
    assert found == {"new": 4, "process": 36}
    assert_equals_one_pass(plan, days)
