"""The page on time, on a real session."""

import pytest

from tests.howto.pages import claims_on
from tests.spark.conftest import spark

__all__ = ["spark"]  # the fixture that the page's tests ask for

pytestmark = pytest.mark.spark

globals().update(claims_on("time"))
