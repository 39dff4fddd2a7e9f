"""`docs/explanation/exactly-once.md`: what it calls wrong is refused, and what it calls right counts once."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import statebackend as sb
from statebackend.errors import InputError, StateGoneError
from tests.howto.pages import ROOT, code_of
from tests.knobs import settings_with
from tests.spark.frames_without_spark import Frame

PAGE = ROOT / "docs" / "explanation" / "exactly-once.md"


def batch(*rows: tuple[str, str, int]) -> Any:
    """Rows of an account, a kind and cents."""
    return Frame(pa.table(dict(zip(("account", "kind", "cents"), zip(*rows, strict=True), strict=True))))


MIXED = batch(("ada", "order", 300), ("ada", "refund", 20))
NOTHING = Frame(MIXED.table.slice(0, 0))


@pytest.fixture
def page() -> Any:
    """What the page defines."""
    names = {"sb": sb}
    exec(compile(code_of(PAGE.read_text(encoding="utf-8")), str(PAGE), "exec"), names)
    return SimpleNamespace(**names)


OpenSink = Callable[[str], Any]


@pytest.fixture
def open_sink(page: Any, tmp_path: Path) -> Iterator[OpenSink]:
    """The sink of a job under the page's name of it, and in the page's functions."""
    with ExitStack() as sinks:

        def open_(name: str) -> Any:
            settings = settings_with(job=name, primary=f"file://{tmp_path}/primary")
            sink = sb.spark.StatefulSink(page.Accounts(), settings, key="account", query_id="q")
            page.each_its_job.__globals__[name] = sinks.enter_context(sink)
            return settings

        yield open_


def balances(settings: Any) -> dict[str, int]:
    return {row["key"]: row["value"] for row in sb.read_state(settings, "balance").read_all().to_pylist()}


def test_a_batch_in_two_calls_is_refused_and_a_branch_inside_counts_both_parts(page: Any, open_sink: OpenSink) -> None:
    settings = open_sink("sink")
    with pytest.raises(InputError, match="the whole batch in one call"):
        page.wrong(MIXED, 0)
    assert balances(settings) == {"ada": 300}
    page.also_wrong.__globals__["sink"](batch(("ada", "order", 1), ("ada", "refund", 50)), 1)
    assert balances(settings) == {"ada": 251}


def test_a_function_that_leaves_out_empty_batches_is_refused(page: Any, open_sink: OpenSink) -> None:
    settings = open_sink("sink")
    page.also_wrong(MIXED, 0)
    page.also_wrong(NOTHING, 1)
    with pytest.raises(StateGoneError, match="also an empty one"):
        page.also_wrong(MIXED, 2)
    assert balances(settings) == {"ada": 280}


def test_parts_with_jobs_of_their_own_count_once_also_after_a_crash_between_them(
    page: Any, open_sink: OpenSink
) -> None:
    orders, refunds = open_sink("orders"), open_sink("refunds")
    page.each_its_job(MIXED, 0)
    page.each_its_job.__globals__["orders"](MIXED.where("kind = 'order'"), 1)  # and then it dies
    page.each_its_job(MIXED, 1)
    assert (balances(orders), balances(refunds)) == ({"ada": 600}, {"ada": -40})
