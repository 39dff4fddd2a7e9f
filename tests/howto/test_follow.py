"""The page on followers: its tests are these."""

from tests.howto.pages import claims_on, load_page
from tests.spark.conftest import spark

__all__ = ["settings", "spark"]  # the fixtures that they ask for

globals().update(claims_on("follow"))

settings = load_page("follow").settings
