"""The page on deleting a person: its tests are these."""

from tests.howto.pages import claims_on

globals().update(claims_on("delete-a-person"))
