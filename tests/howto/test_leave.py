"""The page on the way out, on a real session."""

import sys

import pytest
from pyspark.cloudpickle.cloudpickle import register_pickle_by_value

from tests.howto.pages import load_page
from tests.spark.conftest import spark

__all__ = ["in_rocksdb", "settings", "spark"]  # the fixtures that the page's tests ask for

pytestmark = pytest.mark.spark

_page = load_page("leave")
settings = _page.settings
in_rocksdb = _page.in_rocksdb
globals().update({name: value for name, value in vars(_page).items() if name.startswith("test_")})
register_pickle_by_value(sys.modules["howto_leave"])  # as what a notebook defines: the workers lack it
