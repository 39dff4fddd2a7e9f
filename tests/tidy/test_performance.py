"""The performance page says what the results say."""

import re

from benchmarks import performance, results
from tests.tidy.test_words import ROOT

TEXT = performance.PAGE.read_text(encoding="utf-8")


def test_the_page_is_up_to_date_with_the_results() -> None:
    """`python -m benchmarks page` makes it so."""
    assert performance.page(results.load(results.DIRECTORY)) == TEXT


def test_every_block_is_on_the_page_once() -> None:
    assert sorted(re.findall(r"<!-- results: (\w+) -->", TEXT)) == sorted(performance.BLOCKS)


def test_the_numbers_of_a_table_are_those_of_the_rounds() -> None:
    """A median with what it lies between, and nothing in the place of a contestant that was not there."""
    measured = [
        results.MeasuredRecord("a batch", "ms", {"keys": 10}, {"ours": [3.0, 1.0, 2.0], "theirs": [9.0]}),
        results.MeasuredRecord("a batch", "ms", {"keys": 1000}, {"ours": [4.0]}),
    ]
    run = results.Result("upserts", "2026-11-22T12:00:00", 60.0, False, {}, "abc", {}, {}, [], measured)
    assert performance.tables.milliseconds([run]).splitlines() == [
        "| ms, median (least to most) | 10 keys | 1,000 keys |",
        "| --- | --- | --- |",
        "| ours | 2 (1 to 3) | 4 |",
        "| theirs | 9 |  |",
    ]


def test_the_pictures_of_the_page_are_there() -> None:
    for name in re.findall(r"\]\((performance/\w+\.svg)\)", TEXT):
        assert (performance.PAGE.parent / name).is_file(), name
    assert (ROOT / "benchmarks" / "results").is_dir()
