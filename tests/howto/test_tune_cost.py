"""The page on tune cost."""

from tests.howto.pages import claims_on

globals().update(claims_on("tune-cost"))
