"""The performance page: its tables and charts, made of results files and of nothing else.

The words of `docs/explanation/performance.md` are written by hand. What stands between `<!-- results: NAME -->` and
`<!-- end -->` is written by `python -m benchmarks page`, and a test fails if it is not what the results say.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.performance import tables
from benchmarks.results import Result

PAGE: Final = Path(__file__).parents[2] / "docs" / "explanation" / "performance.md"
CHARTS: Final = PAGE.with_suffix("")
"""The directory of the charts, beside the page."""
BLOCKS: Final[Mapping[str, Callable[[Sequence[Result]], str]]] = {
    "machine": tables.machine,
    "milliseconds": tables.milliseconds,
    "megabytes": tables.megabytes,
    "spark": tables.spark,
    "python_apis": tables.python_apis,
    "kills": tables.kills,
    "checkpoint": tables.checkpoint,
    "recovery": tables.recovery,
    "size": tables.size,
    "parallelism": tables.parallelism,
    "copies": tables.copies,
    "delay": tables.delay,
    "expectations": tables.expectations,
}
_BLOCK: Final = re.compile(r"(<!-- results: (?P<name>\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def page(results: Sequence[Result]) -> str:
    """The text of the page, with the blocks that these results give. Raises `KeyError` for a block that is unknown."""
    text = PAGE.read_text(encoding="utf-8")
    return _BLOCK.sub(lambda found: found[1] + BLOCKS[found["name"]](results) + found[4], text)


def make(results: Sequence[Result]) -> Iterator[Path]:
    """Write the page, and then its charts, for which matplotlib is needed."""
    PAGE.write_text(page(results), encoding="utf-8")
    yield PAGE
    from benchmarks.performance import charts  # noqa: PLC0415

    yield from charts.draw(results, CHARTS)
