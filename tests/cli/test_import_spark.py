"""`import-spark`: its arguments, its output, and its exit status. What it does, `tests/spark/test_import.py` tests."""

from typing import Any

import pytest

import statebackend as sb
from statebackend import cli
from tests.cli.conftest import Place


def states(backend: Any) -> None:
    """As a program declares them."""
    backend.value_state("orders", int)


def test_its_arguments_go_to_the_function(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables and fields by name; and it says whose state the job has."""
    asked: list[Any] = []

    async def called(settings: sb.Settings, declare: Any, checkpoint: str, **options: Any) -> sb.reports.SeedReport:
        asked.append((settings.job, declare, checkpoint, options))
        options["tell"](sb.reports.Progress("reading", 1.0, 1, 1))
        mark = sb.SourceMark("a1c4", 41)
        return sb.reports.SeedReport(
            job=settings.job, dry_run=False, checkpoint_id=0, source=mark, keys={"orders": 1}, rows={"orders": 1}
        )

    monkeypatch.setattr("statebackend.spark.import_checkpoint", called)
    options = ("--variable", "state=orders", "--variable", "timeouts=", "--fields", "state=a,b", "--clock", "event")
    status, printed = place.run("import-spark", "s3a://b/c", "--states", f"{__name__}:states", *options, job="new")
    assert status == cli.OK
    assert "the state of query a1c4 after batch 41" in printed
    ((job, declare, checkpoint, given),) = asked
    given.pop("tell")
    assert (job, declare, checkpoint) == ("new", states, "s3a://b/c")
    assert given == {
        "variables": {"state": "orders", "timeouts": None},
        "fields": {"state": ["a", "b"]},
        "operator_id": 0,
        "clock": "event",
        "dry_run": False,
        "parallelism": None,
    }
    assert place.run("import-spark", "c", "--states", "nowhere:x", job="new")[0] == cli.WRONG_CALL
