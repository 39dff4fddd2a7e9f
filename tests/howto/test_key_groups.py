"""The page on key groups: its tests are these."""

from tests.howto.pages import claims_on

globals().update(claims_on("key-groups"))
