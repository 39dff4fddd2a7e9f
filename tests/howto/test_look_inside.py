"""The page on looking inside a job: its tests are these."""

from tests.howto.pages import claims_on

globals().update(claims_on("look-inside"))
