"""The page on mirrors: its tests are these."""

from tests.howto.pages import claims_on, load_page

__all__ = ["settings"]  # the fixture that they ask for

globals().update(claims_on("mirror"))

settings = load_page("mirror").settings
