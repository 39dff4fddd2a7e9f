"""Whole processes killed with SIGKILL: nothing acknowledged is lost, no batch is applied twice, and nothing stays.

After each kill the job is opened, goes on by a batch, is left, grows old, and is swept: then what is reachable is
there, in the primary and in the local roots, and not a file besides.
"""

import os
import random
from pathlib import Path

import pytest

import statebackend as sb
from statebackend._checkpoint.materialization.tiers import members
from tests.backend.conftest import Tree, tree_of
from tests.backend.killed_child import apply, batch_changes, live, settings_in, state_of
from tests.backend.reachable import (
    assert_copies_are_of_use,
    assert_rocksdb_copies_are_of_use,
    newest_of,
    reachable_keys,
)
from tests.mortals import last_word

PLACES = ("primary/killed/", "local0/job_killed/", "local1/job_killed/")


async def check(directory: Path, way: str, acknowledged: int) -> tuple[int, sb.RestoreReport | None]:
    """Go on by one batch, from the state of a dictionary to which every batch up to the committed one was applied once.

    The number of that batch, and what opening restored.
    """
    async with sb.open_backend(settings_in(directory, way)) as backend:
        state = state_of(backend, way)
        source = backend.newest.source if backend.newest is not None else None
        committed = -1 if source is None else source.batch_id
        assert committed >= acknowledged
        expected: dict[sb.Key, int] = {}
        for batch in range(committed + 1):
            apply(expected, batch_changes(batch))
        assert dict(state) == expected
        apply(state, batch_changes(committed + 1))
        await backend.checkpoint(backend.next_checkpoint_id, source=sb.SourceMark("q", committed + 1))
        report = backend.restored
    await check_swept(directory, settings_in(directory, way))
    return committed + 1, report


async def check_swept(directory: Path, settings: sb.Settings) -> None:
    """Sweep the job when all of it is old: what is reachable stays, and nothing else."""
    for name in tree_of(directory):
        os.utime(directory / name, (1.0, 1.0))
    for _ in range(2):  # the mark of how far the sweep before went is garbage only for the next one
        report = await sb.sweep(settings, dry_run=False, min_age_s=0.0)
        assert (report.failures, report.stopped) == ((), None)
    primary, *roots = (below(tree_of(directory), prefix) for prefix in PLACES)
    assert primary.keys() == reachable_keys(primary, "killed", retained=settings.checkpoints_retained)
    copies = [below(root, "taskowned/") for root in roots]
    rocksdb = [{name: root[name] for name in root if name.startswith("op_")} for root in roots]
    assert sum(map(len, roots)) == sum(map(len, [*copies, *rocksdb])) + len([root for root in roots if "lock" in root])
    assert not set[str]().intersection(*copies)
    assert_copies_are_of_use({**copies[0], **copies[1]}, primary, "killed")
    assert_rocksdb_copies_are_of_use({**rocksdb[0], **rocksdb[1]}, primary, "killed")


def below(tree: Tree, prefix: str) -> Tree:
    """What lies below `prefix`, by names that are seen from there."""
    return {name.removeprefix(prefix): content for name, content in tree.items() if name.startswith(prefix)}


@pytest.mark.parametrize("seed", [1, 2])
async def test_killed_from_outside_again_and_again(tmp_path: Path, seed: int) -> None:
    """Five lives of one job, each ended while it works: each continues where the last one was acknowledged."""
    chance = random.Random(seed)
    acknowledged = -1
    for _ in range(5):
        last = last_word(live, tmp_path, "both", words=chance.randrange(1, 12))
        acknowledged, report = await check(tmp_path, "both", max(acknowledged, last))
        assert report is not None
        # The local copy of a committed segment was durable before its commit: a kill costs no download.
        assert report.files_primary == 0


@pytest.mark.parametrize("way", ["inline", "segments", "bases"])
async def test_killed_at_every_request_of_the_protocol(tmp_path: Path, way: str) -> None:
    """One job, killed at each request of opening it and of the next batches, before and after it took effect."""
    acknowledged = -1
    for nth in range(1, 11):
        for moment in ("before", "after"):
            last = last_word(live, tmp_path, way, nth=nth, moment=moment)
            acknowledged, _ = await check(tmp_path, way, max(acknowledged, last))
    assert acknowledged > 20


@pytest.mark.parametrize("way", ["bases", "columns"])
async def test_killed_while_bases_are_written(tmp_path: Path, way: str) -> None:
    """At the upload of the first ones of a life, and of those that come when these are in a commit."""
    acknowledged = -1
    for nth in (1, 2):
        for moment in ("before", "after"):
            last = last_word(live, tmp_path, way, nth=nth, moment=moment, key="killed/segments/*")
            acknowledged, _ = await check(tmp_path, way, max(acknowledged, last))
    newest = newest_of(below(tree_of(tmp_path), PLACES[0]), "killed")
    assert any(part.bases for part in newest.ranges)


async def test_killed_while_change_sets_are_merged(tmp_path: Path) -> None:
    """At the uploads of merged ones, which are all that lies in segments here, before and after they took effect."""
    acknowledged = -1
    for nth in (1, 2, 5):
        for moment in ("before", "after"):
            last = last_word(live, tmp_path, "merged", nth=nth, moment=moment, key="killed/segments/*")
            acknowledged, _ = await check(tmp_path, "merged", max(acknowledged, last))
    newest = newest_of(below(tree_of(tmp_path), PLACES[0]), "killed")
    assert any(members(handle) > 2 for part in newest.ranges for handle in part.changelog)


async def test_killed_in_the_moment_of_each_commit(tmp_path: Path) -> None:
    """Runs of one batch that end before they know of their commit: bases come in, and nothing is listed twice."""
    for batch in range(6):
        killed = {"operation": "put_if_absent", "key": "killed/commits/*", "nth": 2, "moment": "after"}
        assert last_word(live, tmp_path, "short", **killed) == -1  # the first entry was its claim
        newest = newest_of(below(tree_of(tmp_path), PLACES[0]), "killed")
        assert newest.source == sb.SourceMark("q", batch)
        assert all(len(part.changelog) <= 2 for part in newest.ranges)
    assert any(part.bases for part in newest.ranges)
    await check(tmp_path, "short", 5)


async def test_killed_while_rocksdb_bases_are_written(tmp_path: Path) -> None:
    """At the upload of one of their files, and from outside, wherever it is: copying, linking, or opening them."""
    pytest.importorskip("rocksdict", reason="the extra rocksdb")
    acknowledged = -1
    for nth, moment in ((1, "before"), (5, "after")):
        last = last_word(live, tmp_path, "native", nth=nth, moment=moment, key="killed/segments/*")
        acknowledged, _ = await check(tmp_path, "native", max(acknowledged, last))
    last = last_word(live, tmp_path, "native", words=2)
    acknowledged, report = await check(tmp_path, "native", max(acknowledged, last))
    assert report is not None
    assert report.files_primary == 0
    words = 4
    while not any(part.rocksdb for part in newest_of(below(tree_of(tmp_path), PLACES[0]), "killed").ranges):
        words *= 2  # on a busy machine none was done before its life ended
        last = last_word(live, tmp_path, "native", words=words)
        acknowledged, _ = await check(tmp_path, "native", max(acknowledged, last))
