"""The page on the metrics is made from their definitions, and what it shows runs."""

from pathlib import Path

from docs._site.metrics_page import reference_page
from statebackend.observers import Metrics
from tests.howto.pages import code_of

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"

FLINK = {
    "numberOfUploadRequests": "counter",
    "numberOfUploadFailures": "counter",
    "uploadSizes": "histogram",
    "uploadLatenciesNanos": "histogram",
    "uploadBatchSizes": "histogram",
    "attemptsPerUpload": "histogram",
    "totalAttemptsPerUpload": "histogram",
    "uploadQueueSize": "gauge",
}


def snake_case(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def test_the_page_is_up_to_date() -> None:
    """If not: `python docs/_site/metrics_page.py > docs/reference/metrics.md`."""
    assert PAGE.read_text(encoding="utf-8") == reference_page()


def test_the_page_has_a_row_for_each_metric() -> None:
    """Kind, unit and meaning are all there, and a cell ends where it should."""
    rows = [line.split(" | ") for line in reference_page().splitlines() if line.startswith("| `")]
    assert [row[0] for row in rows] == [f"| `{each.name}`" for each in Metrics.definitions()]
    assert all(len(row) == 5 and all(row) for row in rows)


def test_the_first_eight_are_flink_s() -> None:
    """Section 4: the names in snake_case and the kinds; and seconds instead of nanoseconds."""
    ours = {each.name: each.kind for each in Metrics.definitions()[:8]}
    assert ours == {snake_case(name).replace("nanos", "seconds"): kind for name, kind in FLINK.items()}


def test_the_code_on_the_page_runs() -> None:
    """It asserts what it says."""
    code = code_of(PAGE.read_text(encoding="utf-8"))
    assert "asyncio.run" in code
    exec(compile(code, str(PAGE), "exec"), {"__name__": "page"})
