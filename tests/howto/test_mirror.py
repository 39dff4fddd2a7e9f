"""The page on mirrors: its tests are these."""

from tests.howto.pages import claims_on, load_page
from tests.mirroring.servers import postgres

__all__ = ["postgres", "settings"]  # the fixtures that they ask for

globals().update(claims_on("mirror"))

settings = load_page("mirror").settings
