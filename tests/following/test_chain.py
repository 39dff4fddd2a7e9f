"""What leads from one commit to the next is proved by the two commits, or it is not used."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest

import statebackend as sb
from statebackend._checkpoint.chain import added_by
from statebackend._codec.commit import Commit, decode_entry
from statebackend._upkeep.job_primary import open_job_primary
from statebackend.objectstore import MemoryStore
from statebackend.testing import run_virtual
from statebackend.testing.virtual_time import VirtualClock
from tests.rewrite.jobs import settings_of


async def two_commits(**changed: Any) -> tuple[Commit, Commit]:
    """Two neighbours, with a change set each, behind a third."""
    settings, store = settings_of(4, inline_bytes_max=0, **changed), MemoryStore()
    async with sb.open_backend(settings, store=store, clock=VirtualClock()) as backend:
        for number in range(3):
            backend.value_state("n", int)[str(number)] = number
            await backend.checkpoint(number)
    found: list[Any] = []
    for sequence in (2, 3):
        key = f"commits/{sequence:012}"
        found.append(decode_entry(await store.get(f"{settings.job}/{key}"), key, job=settings.job))
    return found[0], found[1]


def with_range(commit: Commit, **changed: Any) -> Commit:
    (part,) = commit.ranges
    return msgspec.structs.replace(commit, ranges=(msgspec.structs.replace(part, **changed),))


@run_virtual
async def test_a_commit_adds_the_change_sets_behind_those_of_its_parent() -> None:
    """Those of several commits come in order."""
    before, commit = await two_commits()
    last = commit.ranges[0].changelog[-1:]
    assert added_by(before, [commit], None) == [*last]
    following = msgspec.structs.replace(commit, sequence=commit.sequence + 1, parent=commit.sequence)
    assert added_by(before, [commit, following], None) == [*last]
    assert added_by(commit, [following], None) == []


CHANGES = {
    "parent": lambda before, commit: msgspec.structs.replace(commit, parent=before.sequence - 1),
    "key groups": lambda before, commit: msgspec.structs.replace(commit, max_parallelism=8),
    "a state is gone": lambda before, commit: msgspec.structs.replace(commit, states=()),
    "nothing is left": lambda before, commit: with_range(commit, changelog=()),
    "the first is gone": lambda before, commit: with_range(commit, changelog=commit.ranges[0].changelog[1:]),
    "the parent's own is gone": lambda before, commit: with_range(
        commit, changelog=(commit.ranges[0].changelog[0], commit.ranges[0].changelog[2])
    ),
    "another one comes before": lambda before, commit: with_range(
        commit, changelog=(commit.ranges[0].changelog[2], *commit.ranges[0].changelog)
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_commit_that_contradicts_is_read_anew(change: str) -> None:
    """It says why."""

    @run_virtual
    async def go() -> Sequence[Any]:
        before, commit = await two_commits()
        return added_by(before, [CHANGES[change](before, commit)], None)

    assert isinstance(go(), str)


Makes = Callable[[MemoryStore, sb.Settings], Awaitable[Any]]


EDITS: dict[str, Makes] = {
    "erase": lambda store, settings: sb.erase(settings, ["0"], store=store, clock=VirtualClock()),
    "transform": lambda store, settings: sb.transform(
        settings, "n", lambda key, value: [(key + "x", value)], store=store, clock=VirtualClock()
    ),
    "rewrite": lambda store, settings: sb.rewrite(
        msgspec.structs.replace(settings, max_parallelism=8), store=store, clock=VirtualClock()
    ),
}


async def _around(make: Makes, **changed: Any) -> tuple[Commit, Commit]:
    """The commit before, whose state lies in bases alone, and the one that is made behind it by another writer."""
    settings, store = settings_of(4, inline_bytes_max=0, materialize_handles_max=1, **changed), MemoryStore()
    for number in range(2):
        async with sb.open_backend(settings, store=store, clock=VirtualClock()) as backend:
            if not number:
                backend.value_state("n", int).update({str(key): key for key in range(5)})
            await backend.checkpoint(number)
    await make(store, settings)
    async with open_job_primary(settings, store) as primary:
        commit, _ = await primary.find()
        assert commit.parent is not None
        before = await primary.log.load_commit(commit.parent)
    assert all(part.all_bases and not part.changelog for part in before.ranges)
    assert {base for part in commit.ranges for base in part.all_bases} != {
        base for part in before.ranges for base in part.all_bases
    }
    return before, commit


@pytest.mark.parametrize("table", ["heap", "rocksdb"])
def test_the_bases_that_a_new_writer_brings_are_of_the_commit_before(table: str) -> None:
    """It began to write them before it changed anything, and each change since is in its changelog."""

    @run_virtual
    async def go() -> None:
        settings, store = settings_of(4, inline_bytes_max=0, materialize_handles_max=1, table=table), MemoryStore()
        for number in range(4):
            async with sb.open_backend(settings, store=store, clock=VirtualClock()) as backend:
                backend.value_state("n", int).update({str(number): number, "same": number})
                await backend.checkpoint(number)
        async with open_job_primary(settings, store) as primary:
            commit, _ = await primary.find()
            before = await primary.log.load_commit(commit.parent or 0)
        (part,) = commit.ranges
        assert part.all_bases != before.ranges[0].all_bases
        assert commit.epoch != before.epoch
        assert added_by(before, [commit], None) == [*part.changelog]
        assert sum(each.records for each in part.changelog) == 2
        assert isinstance(added_by(before, [with_range(commit, restored=msgspec.UNSET)], None), str)

    go()


@pytest.mark.parametrize("edit", EDITS)
def test_the_bases_that_an_edit_brings_are_read_anew(edit: str) -> None:
    """They hold what nobody has logged, and look like those of a writer that goes on."""

    @run_virtual
    async def go() -> None:
        before, commit = await _around(EDITS[edit])
        assert isinstance(added_by(before, [commit], None), str)

    go()
