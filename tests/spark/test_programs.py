"""Drawn programs do on a real session what they do on the frames of the tests: some here, 300 by `--spark 300`."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.programs.drawing import FRESH, draw
from tests.programs.program import Batch
from tests.programs.real_spark import OnSpark

pytestmark = pytest.mark.usefixtures("quiet")
BATCHES_MAX = 4
SEEDS = [
    seed
    for seed in range(FRESH, FRESH + 200)
    if sum(isinstance(step, Batch) for step in draw(seed).steps) <= BATCHES_MAX
][:5]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_program_does_on_spark_what_dictionaries_do(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """The short ones: each takes a second or two."""
    settings = {name: spark.conf.get(name) for name in ("spark.sql.session.timeZone", "spark.sql.timestampType")}
    try:
        OnSpark(draw(seed), tmp_path, spark).run()
    finally:
        for name, value in settings.items():
            spark.conf.set(name, value or "")
