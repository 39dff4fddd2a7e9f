"""The same batches through the tester, the driver and executors: the rows and the state come out equal."""

import asyncio
import itertools
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import statebackend as sb
from statebackend.testing import ProcessorTester
from tests.spark.processors import Asking, Telling

NUMBERS = itertools.count()


def in_order(rows: Any) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["key"])


async def counts_of(where: sb.Settings) -> dict[Any, int]:
    async with sb.open_backend(where, read_only=True) as backend:
        return dict(backend.value_state("counts", int))


@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    batches=st.lists(
        st.lists(st.tuples(st.text("abcäz", max_size=2), st.integers(-9, 9)), min_size=1, max_size=6),
        min_size=2,
        max_size=2,
    ),
    processor=st.sampled_from([Telling, Asking]),
)
def test_batches_come_out_of_the_tester_as_of_the_driver_and_of_executors(spark, tmp_path, batches, processor) -> None:
    """Key by key, in the order asked for, synchronously and not; each job begins empty."""
    number = next(NUMBERS)
    expected: list[list[dict[str, Any]]] = []
    with ProcessorTester(processor(), key="key", order_by="number", ranges=2) as tester:
        for batch in batches:
            rows = [{"key": key, "number": value} for key, value in batch]
            expected.append(in_order(tester.batch(rows)))
        counts = {key: n for each in tester.backends for key, n in each.value_state("counts", int).items()}
    for where in ({}, {"execution": "executors", "parallelism": 2}):
        got: list[list[dict[str, Any]]] = []

        def output(df, batch_id, got=got) -> None:
            got.append(in_order(row.asDict() for row in df.collect()))

        job = sb.Settings(job=f"j{number}{len(where)}", primary=f"file://{tmp_path}/primary", persist_delay_s=0.0)
        with sb.spark.StatefulSink(
            processor(), job, key="key", order_by="number", output=output, query_id="mine", **where
        ) as sink:
            for batch_id, batch in enumerate(batches):
                sink(spark.createDataFrame(batch, "key string, number bigint"), batch_id)
        assert got == expected
        assert asyncio.run(counts_of(msgspec.structs.replace(job, local=()))) == counts
