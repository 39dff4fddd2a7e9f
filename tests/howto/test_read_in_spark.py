"""The page on reading the state in Spark, on a real session."""

import pytest

from tests.howto.pages import load_page
from tests.spark.conftest import spark

__all__ = ["settings", "spark"]  # the fixture that the page's tests ask for

pytestmark = pytest.mark.spark

_page = load_page("read-in-spark")
settings = _page.settings
globals().update({name: value for name, value in vars(_page).items() if name.startswith("test_")})
