"""The page on kinds of state: its tests are these."""

from tests.howto.pages import claims_on

globals().update(claims_on("kinds-of-state"))
