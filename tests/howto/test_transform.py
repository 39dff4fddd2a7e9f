"""The page on transforming a state: its tests are these."""

from tests.howto.pages import claims_on

globals().update(claims_on("transform"))
