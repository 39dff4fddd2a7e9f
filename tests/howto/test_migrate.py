"""The page on migrate."""

from tests.howto.pages import claims_on

globals().update(claims_on("migrate"))
