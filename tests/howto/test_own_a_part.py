"""The page on owners of parts: its test is this one."""

from tests.howto.pages import claims_on

globals().update(claims_on("own-a-part"))
