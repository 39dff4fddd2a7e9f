"""The arithmetic behind `docs/explanation/how-far.md`."""

import dataclasses
from pathlib import Path

import pytest

from benchmarks.how_far import one_driver
from benchmarks.how_far.__main__ import HEAD, line, table
from benchmarks.how_far.envelope import INLINE_SHARE_BYTES, Envelope, commit_of
from benchmarks.how_far.virtual_time import times_of

SMALL = Envelope(owners=8, keys=8_000_000, handles=4, changes=400)


def test_a_commit_grows_with_its_owners_and_with_what_each_lists() -> None:
    """Twice as many of either is nearly twice the commit; the names of segments are longer than those of commits."""
    size = len(commit_of(8, 64).body)
    assert 1.9 * size < len(commit_of(16, 64).body) < 2.1 * size
    assert 1.8 * size < len(commit_of(8, 128).body) < 2.1 * size
    assert len(commit_of(8, 64, inline=False).body) > size


def test_requests_are_priced_by_the_month() -> None:
    """One PUT a second, and the hints, bases and sweeps beside it; larger changes are a PUT for each owner."""
    assert SMALL.is_inline
    large = dataclasses.replace(SMALL, changes=8 * INLINE_SHARE_BYTES)
    assert large.requests()["put"] - SMALL.requests()["put"] == pytest.approx(8)
    assert large.usd_month() - SMALL.usd_month() == pytest.approx(8 * 2_592_000 * 0.005 / 1000, rel=0.01)


def test_a_restore_is_bound_by_what_is_scarcest() -> None:
    """All owners at once meet the limit of S3 that one host does not."""
    gets, size_bytes, seconds = SMALL.restore(1)
    assert gets == SMALL.base_segments + SMALL.handles + 1
    assert size_bytes == pytest.approx(8_000_000 / 8 * 72.5, rel=0.01)
    wide = dataclasses.replace(SMALL, owners=1000, keys=10**9)
    assert wide.restore(1000)[2] > wide.restore(10)[2] > 0 < seconds


def test_a_batch_in_virtual_time_waits_for_its_slowest_request() -> None:
    """Some requests one after the other: the least is their latency, and a batch of nobody's hangs."""
    times = times_of(4, 2, 100, lost=1)
    assert all(0.05 < each_s < 5 for each_s in (*times.batches, times.host, times.job))
    assert times.host < times.job, "one owner was open before all and their coordinator"


def test_what_is_printed_is_a_table() -> None:
    """A head, a rule and a row."""
    assert table(HEAD, [line(SMALL)]).count("\n") == 2


def test_one_driver_is_reckoned_from_bases_that_were_written(tmp_path: Path) -> None:
    """A table for each number of keys; a segment has a key group at least, and nothing is larger than it says."""
    found = one_driver.measured(tmp_path, 20_000)
    assert 47 < found.key_bytes < 55
    assert found.opening_bytes < found.key_bytes / 50
    assert 20 < found.page_memory_bytes < 300  # with what each part takes, of which a small job has few pages
    rows = [one_driver.line(keys, found) for keys in (2_000_000, 20_000_000)]
    assert [len(row) for row in rows] == [len(one_driver.HEAD)] * 2
    assert one_driver.segments_of(48e9, 128) == 128
    assert one_driver.segments_of(48e9, 4096) == 2048
    assert one_driver.segments_of(100e6, 4096) == 6
