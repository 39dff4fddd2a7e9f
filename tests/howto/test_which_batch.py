"""The page on finding the batch that broke a number: its tests are these."""

from tests.howto.pages import claims_on

globals().update(claims_on("which-batch"))
