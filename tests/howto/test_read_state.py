"""The page on reading state from outside: its tests are these. Libraries that are not installed are skipped."""

from tests.howto.pages import claims_on, load_page

globals().update(claims_on("read-state"))

settings = load_page("read-state").settings
