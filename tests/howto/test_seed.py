"""The page on seeding a job and going live, on a real session, with a topic that is read as Kafka's are."""

import sys
from pathlib import Path

import pytest
from pyspark.cloudpickle.cloudpickle import register_pickle_by_value
from pyspark.sql import SparkSession

from tests.howto.pages import claims_on
from tests.howto.topics import Topic, source_of
from tests.spark.conftest import spark

__all__ = ["spark"]  # the fixture that the page's tests ask for

pytestmark = pytest.mark.spark


@pytest.fixture
def topic(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Topic:
    """An empty topic, which the session reads where it would read Kafka."""
    made = Topic(tmp_path / "topic.jsonl")
    spark.dataSource.register(source_of(made))
    monkeypatch.setattr(sys.modules["howto_seed"], "TOPIC", "topic")
    return made


globals().update(claims_on("seed"))
register_pickle_by_value(sys.modules["howto_seed"])  # as what a notebook defines: the workers lack it
