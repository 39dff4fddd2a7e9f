"""The page on stores of one's own: its tests are these, its store passes the kit without overriding a test."""

from tests.howto.pages import claims_on

globals().update(claims_on("custom-store"))
