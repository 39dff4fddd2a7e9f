"""The page on comparing a processor with a plain dictionary: its tests are these, without Spark."""

from tests.howto.pages import claims_on

globals().update(claims_on("test-against-a-model"))
