"""The page on executors, on a real session."""

import sys

import pytest
from pyspark.cloudpickle.cloudpickle import register_pickle_by_value

from tests.howto.pages import claims_on
from tests.spark.conftest import spark

__all__ = ["spark"]  # the fixture that the page's tests ask for

pytestmark = pytest.mark.spark

globals().update(claims_on("executors"))
register_pickle_by_value(sys.modules["howto_executors"])  # as what a notebook defines: the workers lack it
