"""Conformance kits: tests that a store or an uploader of one's own inherits, and that nobody overrides.

`object_stores` and `stores_over_time` test a store, which `store_under_test` describes to them; `uploaders` tests an
uploader, by `uploader_under_test`. `blocking` sees calls that block the loop, `cancellation` cancels in every way.
"""
