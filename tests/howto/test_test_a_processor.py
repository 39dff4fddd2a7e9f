"""The page on testing a processor: its tests are these, without Spark."""

from tests.howto.pages import claims_on

globals().update(claims_on("test-a-processor"))
