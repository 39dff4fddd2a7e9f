"""The performance page says what the results say."""

import re

from benchmarks import history, performance, results
from tests.tidy.test_words import ROOT

TEXT = performance.PAGE.read_text(encoding="utf-8")


def test_the_page_is_up_to_date_with_the_results() -> None:
    """`python -m benchmarks page` makes it so."""
    assert performance.page(results.load(results.DIRECTORY)) == TEXT


def test_the_history_has_every_result() -> None:
    """`nox -s bench` adds to it."""
    kept = history.load(history.FILE)
    for result in results.load(results.DIRECTORY):
        assert set(history.entries_of(result)) <= set(kept), result.benchmark


def test_the_page_of_the_history_is_up_to_date_with_it() -> None:
    """Made by the same command; the page of today links to it."""
    assert history.page(history.load(history.FILE)) == history.PAGE.read_text(encoding="utf-8")
    assert f"]({history.PAGE.name})" in TEXT


def test_the_newest_runs_stand_beside_one_another_ratios_first() -> None:
    """A claim that is measured no more leaves the table with the last run that had it. What missed is bold."""

    def entry(day: int, claim: str, measured: float, unit: str) -> history.Entry:
        verdict = "missed" if measured > 3 and unit == "x" else "kept"
        return history.Entry(
            f"2026-11-{day:02}T12:00:00", f"c{day}", "", "upserts", claim, measured, unit, "most", verdict
        )

    days = range(1, 8)
    entries = [entry(1, "old | one", 1, "x"), *(entry(day, "a time", day, "ms") for day in days)]
    entries += [entry(day, "ratio", day / 2, "x") for day in days if day != 6]
    assert history.tables(entries).split("## upserts\n\n")[1].splitlines() == [
        "| Claim | Expected | " + " | ".join(f"2026-11-0{day}, `c{day}`" for day in range(3, 8)) + " |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| ratio | most | 1.5 x | 2 x | 2.5 x |  | **3.5 x** |",
        "| a time | most | 3 ms | 4 ms | 5 ms | 6 ms | 7 ms |",
    ]


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


def test_the_first_screen_of_the_site_says_what_was_measured() -> None:
    """Its one number, and what it is compared with; and rows that were counted twice."""
    first = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    measured = results.load(results.DIRECTORY)
    rows = [line.strip("| ").split(" | ") for line in performance.tables.milliseconds(measured).splitlines()]
    (keys,), (ours,), (heap,), (theirs,) = (
        [re.sub(r" \(.*|,", "", row[-1]) for row in rows if row[0].startswith(name)]
        for name in ("ms", "columns", "heap", "MERGE")
    )
    assert keys == "10000000 keys"
    said = f"of ten million takes {float(ours):.0f} ms, and {float(theirs) / 1000:.1f} s with a `MERGE`"
    assert said in first
    assert f"state as Python objects, which takes {float(heap):.0f} ms" in first
    twice = dict(re.findall(r"\| (.+) \| ([\d,]+) \|", performance.tables.kills(measured)))
    assert (twice["statebackend"], twice["MERGE that adds"]) == ("0", "100,000")
    assert "no row was counted twice, where adding by `MERGE` counts 100,000" in " ".join(first.split())


def test_the_pictures_of_the_page_are_there() -> None:
    for name in re.findall(r"\]\((performance/\w+\.svg)\)", TEXT):
        assert (performance.PAGE.parent / name).is_file(), name
    assert (ROOT / "benchmarks" / "results").is_dir()
