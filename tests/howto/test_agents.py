"""The page for coding agents."""

from tests.howto.pages import claims_on

globals().update(claims_on("../agents"))
