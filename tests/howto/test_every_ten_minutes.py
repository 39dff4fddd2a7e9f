"""The page every-ten-minutes, on a real session."""

import pytest

from tests.howto.pages import claims_on
from tests.spark.conftest import spark

__all__ = ["spark"]

pytestmark = pytest.mark.spark

globals().update(claims_on("every-ten-minutes"))
