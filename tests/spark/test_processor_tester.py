"""The same batches through the tester, the driver and executors: the rows and the state come out equal."""

import asyncio
import random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import statebackend as sb
from statebackend.testing import ProcessorTester
from tests.spark.processors import Asking, Telling


def in_order(rows: Any) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["key"])


async def counts_of(where: sb.Settings) -> dict[Any, int]:
    async with sb.open_backend(where, read_only=True) as backend:
        return dict(backend.value_state("counts", int))


KEYS = ["a", "b", "p", "z", "ä"]


@settings(max_examples=1, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(chance=st.integers(1, 2**32).map(random.Random))
def test_batches_come_out_of_the_tester_as_of_the_driver_and_of_executors(spark, tmp_path, chance) -> None:
    """Key by key, in the order asked for, synchronously in the driver and asynchronously on executors."""
    batches = [[(chance.choice(KEYS), chance.randrange(100)) for _ in range(8)] for _ in range(2)]
    places: list[tuple[Any, dict[str, Any]]] = [(Telling, {}), (Asking, {"execution": "executors", "parallelism": 2})]
    for number, (processor, where) in enumerate(places):
        with ProcessorTester(processor(), key="key", order_by="number", ranges=number + 1) as tester:
            rows = [[{"key": key, "number": value} for key, value in batch] for batch in batches]
            expected = [in_order(tester.batch(each)) for each in rows]
            counts = {key: n for each in tester.backends for key, n in each.value_state("counts", int).items()}
        assert sum(counts.values()) == 16
        got: list[list[dict[str, Any]]] = []

        def output(df, batch_id, got=got) -> None:
            got.append(in_order(row.asDict() for row in df.collect()))

        job = sb.Settings(job=f"j{number}", primary=f"file://{tmp_path}/primary", persist_delay_s=0.0)
        with sb.spark.StatefulSink(
            processor(), job, key="key", order_by="number", output=output, query_id="mine", **where
        ) as sink:
            for batch_id, batch in enumerate(batches):
                sink(spark.createDataFrame(batch, "key string, number bigint"), batch_id)
        assert got == expected
        assert asyncio.run(counts_of(job)) == counts
