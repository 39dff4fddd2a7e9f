"""A commit is applied in small pieces, and none of it shows before the last one is."""

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

import statebackend as sb
from statebackend._following.columns import ROWS_AT_ONCE, ColumnsAtCommit
from statebackend._following.following import Following
from statebackend._following.tables import IN_FILES_AT_ONCE, IN_MEMORY_AT_ONCE, TableAtCommit
from statebackend.objectstore import MemoryStore
from statebackend.testing import run_virtual
from statebackend.testing.virtual_time import VirtualClock
from tests.rewrite.jobs import settings_of


@pytest.mark.parametrize("table", ["heap", "rocksdb"])
def test_a_commit_is_applied_in_small_pieces(table: str) -> None:
    """In every kind of table; between two pieces the loop runs, and what is read is all of the commit before."""
    shares = [0.0]  # of what may be applied in one go
    applied = 0
    may_go_on = Following._may_go_on

    def counted(advance: Any) -> Any:
        def advancing(at_commit: Any, changes: Any) -> None:
            nonlocal applied
            applied += changes.records
            at_once = changes.kind == 2 and ROWS_AT_ONCE
            shares[-1] += changes.records / (at_once or (IN_MEMORY_AT_ONCE if table == "heap" else IN_FILES_AT_ONCE))
            advance(at_commit, changes)

        return advancing

    @run_virtual
    async def go() -> None:
        clock, store = VirtualClock(), MemoryStore()
        settings = settings_of(4, table=table)
        keys = [str(number) for number in range(5000)]

        async with sb.open_backend(settings, store=store, clock=clock) as backend:
            await change(backend, keys[:4000], 1)
            async with sb.follow(settings, store=store, clock=clock) as follower:
                states = all_states(follower)

                async def judged(following: Following) -> None:
                    number, count = (1, 4000) if follower.position.batch_id == 1 else (2, 4800)
                    assert [len(state) for state in states] == [count] * 4
                    assert all(state[keys[3000]] == found for state, found in zip(states, read(number), strict=True))
                    assert all((keys[0] in state) == (number == 1) for state in states)
                    assert all((keys[4500] in state) == (number == 2) for state in states)
                    shares.append(0.0)
                    await may_go_on(following)

                with (
                    patch.object(TableAtCommit, "advance", counted(TableAtCommit.advance)),
                    patch.object(ColumnsAtCommit, "advance", counted(ColumnsAtCommit.advance)),
                    patch.object(Following, "_may_go_on", judged),
                ):
                    await change(backend, keys[200:], 2, dropped=keys[:200])
                    await follower.wait_for(batch_id=2)
                    await judged(follower._following)

    go()
    assert max(shares) <= 1
    assert applied >= 4 * 5000


def all_states(states: Any) -> Sequence[Any]:
    """A state of each kind of table."""
    return (
        states.value_state("v", int),
        states.list_state("l", int),
        states.map_state("m", int, int),
        states.columnar_state("c", pa.schema({"n": pa.int64()}), key=pa.string()),
    )


def read(number: int) -> Sequence[Any]:
    """What is read of a key that was changed in each batch up to this one."""
    return number, [*range(1, number + 1)], {each: each for each in range(1, number + 1)}, {"n": number}


async def change(backend: sb.StateBackend, keys: Sequence[str], number: int, dropped: Sequence[str] = ()) -> None:
    """Change these keys in each of `all_states`, drop those, and commit."""
    values, lists, maps, columns = all_states(backend)
    values.put_many(keys, [number] * len(keys))
    columns.rows(keys).scatter({"n": [number] * len(keys)})
    for key in keys:
        lists[key].append(number)
        maps[key][number] = number
    for state in all_states(backend):
        for key in dropped:
            del state[key]
    await backend.checkpoint(number, source=sb.SourceMark("query", number, "run"))
