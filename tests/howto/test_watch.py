"""The page on watching a job, with a real session for the sink."""

import pytest

from tests.howto.pages import claims_on
from tests.spark.conftest import spark

__all__ = ["spark"]  # the fixture that the page's tests ask for

pytestmark = pytest.mark.spark

globals().update(claims_on("watch"))
