"""The page on uploaders of one's own: its tests are these, its uploaders pass the kit as it is."""

from tests.howto.pages import claims_on

globals().update(claims_on("custom-uploader"))
