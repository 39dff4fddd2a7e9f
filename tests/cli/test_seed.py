"""`seed`: its output, its progress, and its exit status."""

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import statebackend as sb
from statebackend import cli
from tests.cli.conftest import Place

FLEET = pa.schema({"n": pa.int64()})


def states(backend: Any) -> None:
    """As a program declares them."""
    backend.value_state("legs", int)
    backend.columnar_state("fleet", FLEET, key=pa.string())


HERE = f"{__name__}:states"


def test_files_become_the_first_state(place: Place) -> None:
    """With their counts; what is said in JSON is in the commit."""
    legs, fleet = place.directory / "legs.parquet", place.directory / "fleet"
    fleet.mkdir()
    pq.write_table(pa.table({"tail": ["a", "b"], "value": [1, 2]}), legs)
    pq.write_table(pa.table({"tail": ["a"], "n": [7]}), fleet / "0.parquet")
    sources = (f"legs={legs}", f"fleet={fleet}", "--states", HERE, "--key", "tail", "--starts-from", '{"version": 41}')
    status, printed = place.run("seed", *sources, "--dry-run", job="new")
    assert (status, "dry run: job new can be seeded" in printed) == (cli.OK, True)
    status, printed = place.run("seed", *sources, job="new")
    assert status == cli.OK
    for line in ("legs: 2 keys of 2 rows", "fleet: 1 keys of 1 rows", "job new, checkpoint 0:", "reading 100%"):
        assert line in printed
    lines = [json.loads(line) for line in place.run("dump", job="new")[1].splitlines()]
    assert sorted((each["key"], each["value"]) for each in lines if each["state"] == "legs") == [("a", 1), ("b", 2)]
    assert place.run("seed", *sources, job="new")[0] == cli.WRONG_CALL


def test_a_wrong_call_says_what_is_wrong(place: Place) -> None:
    """And nothing is made."""
    file = place.directory / "legs.parquet"
    pq.write_table(pa.table({"key": ["a", "a"], "value": [1, 2]}), file)
    good = (f"legs={file}", "--states", HERE)
    for options, said in (
        (good, "a key comes twice"),
        (("legs", "--states", HERE), "STATE=PATH"),
        ((f"legs={file}", "--states", "nowhere:states"), "MODULE:NAME"),
        ((f"legs={file}", "--states", f"{__name__}:nothing"), "MODULE:NAME"),
        ((*good, "--starts-from", "{"), "--starts-from is JSON"),
        ((f"others={file}", "--states", HERE), "no keyed state"),
    ):
        status, printed = place.run("seed", *options, job="new")
        assert (status, said in printed) == (cli.WRONG_CALL, True), printed
    assert not (place.directory / "primary" / "new").exists()
    assert place.run("seed", *good, "--duplicates", "last", "--json", job="new")[0] == cli.OK


def test_a_processor_is_named_by_its_class(place: Place) -> None:
    """It is made without arguments."""
    file = place.directory / "legs.parquet"
    pq.write_table(pa.table({"key": ["a"], "value": [1]}), file)
    assert place.run("seed", f"legs={file}", "--states", f"{__name__}:Legs", job="new")[0] == cli.OK


class Legs(sb.spark.KeyedProcessor):
    def open(self, context: Any) -> None:
        self.legs = context.value_state("legs", int)
