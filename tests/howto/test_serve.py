"""The page on serving a state: its tests are these. They ask a real server on the loopback."""

import pytest

from tests.howto.pages import claims_on, load_page
from tests.spark.conftest import spark

__all__ = ["settings", "spark"]  # the fixtures that they ask for

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

globals().update(claims_on("serve"))

settings = load_page("serve").settings
