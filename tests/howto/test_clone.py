"""The page on cloning a job: its tests are these."""

from tests.howto.pages import claims_on

globals().update(claims_on("clone"))
