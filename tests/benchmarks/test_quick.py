"""The benchmarks run, in their quick form, and none of their contestants gets away with a wrong answer.

Each checks the totals of all its contestants itself: what runs to its end was right. Those
that start processes, Spark's and the recovery, take too long for a test.
"""

import importlib

import pytest

from benchmarks.contest import Report, Sample
from benchmarks.totals import Traffic, answer, check

QUICK = {
    "checkpoint.disk": {"keys": 600, "rows": 200, "checkpoints": 2, "rounds": 1},
    "calls": {"keys": 60, "rows": 200, "batches": 1, "rounds": 1},
    "owners": {"keys": 600, "rows": 100, "checkpoints": 2, "owners": 4, "rounds": 1},
    "following.reads": {"keys": 600, "rounds": 1},
    "following.promotion": {"keys": 600, "rounds": 1},
    "seeding": {"keys": 600, "rounds": 1},
    "processing": {"keys": 600, "rows": 200, "batches": 2, "rounds": 1},
    "upserts": {"keys": 600, "rounds": 1},
}


@pytest.mark.parametrize("name", QUICK)
def test_a_benchmark_runs_to_its_end(name: str) -> None:
    """A missed expectation is a result; a wrong total, or something that is gone from the library, is an error."""
    report = Report(name)
    importlib.import_module(f"benchmarks.{name}").run(report, **QUICK[name])
    assert report.lines


def test_a_contestant_with_a_wrong_total_is_refused() -> None:
    """A row too many, or two rows of one key in the place of another's."""
    rows = Traffic(100, zipf=True).rows(0, 1000)
    expected = answer([rows])
    check("right", expected.sort_by([("n", "descending")]), expected)
    for wrong in (answer([rows, rows.slice(7, 1)]), answer([rows.slice(1)]), expected.slice(1)):
        with pytest.raises(AssertionError, match=r"^slow"):
            check("slow", wrong, expected)


@pytest.mark.parametrize(("share", "figure"), [(0.5, 2.0), (0.51, 3.0), (0.99, 4.0), (0.25, 1.0)])
def test_the_slowest_of_so_many(share: float, figure: float) -> None:
    """The smallest figure that this share of all does not exceed."""
    assert Sample([4.0, 2.0, 1.0, 3.0]).at(share) == figure


def test_zipf_is_uneven_and_all_keys_are_there() -> None:
    """A few keys come often; the first table has each key once, so that all of the state is there."""
    uneven, even = Traffic(10_000, zipf=True), Traffic(10_000)
    most = [max(answer([traffic.rows(0, 20_000)])["n"].to_pylist()) for traffic in (uneven, even)]
    assert most[0] > 20 * most[1]
    assert answer([uneven.every_key()]).num_rows == 10_000
