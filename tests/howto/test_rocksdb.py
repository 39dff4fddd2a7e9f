"""The page on rocksdb."""

from tests.howto.pages import claims_on

globals().update(claims_on("rocksdb"))
