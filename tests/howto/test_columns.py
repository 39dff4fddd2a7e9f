"""The page on columns."""

from typing import Any

import statebackend as sb
from tests.howto.pages import claims_on, load_page

globals().update(claims_on("columns"))

_page: Any = load_page("columns")
settings = _page.settings


async def test_its_processor_counts_flights(settings: sb.Settings) -> None:
    """Without Spark: a context is what declares states."""
    async with sb.open_backend(settings) as backend:
        fleet = _page.Fleet()
        fleet.open(sb.spark.ProcessorContext(backend))
        assert fleet.process_table(_page.FLIGHTS, None).to_pydict() == {"tailnum": ["N14228", "N24211"], "n": [2, 1]}
