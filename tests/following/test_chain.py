"""What leads from one commit to the next is proved by the two commits, or it is not used."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

import statebackend as sb
from statebackend._checkpoint.chain import added_by
from statebackend._codec.commit import Commit, decode_entry
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
