"""The page on followers: its tests are these."""

from tests.howto.pages import claims_on, load_page

globals().update(claims_on("follow"))

settings = load_page("follow").settings
