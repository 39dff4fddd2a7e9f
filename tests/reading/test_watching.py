"""What a look at the log tells of each entry: its numbers are those of that entry, and of what came before it."""

from contextlib import aclosing
from typing import Any

import statebackend as sb
from statebackend.objectstore import MemoryStore
from statebackend.testing import run_virtual
from tests.log.swept import HandClock
from tests.rewrite.jobs import JOB, settings_of


async def stored_bytes(store: MemoryStore) -> dict[str, int]:
    """The segments by their keys."""
    return {info.key: info.size_bytes async for info in store.list(f"{JOB}/segments/")}


@run_virtual
async def test_each_entry_counts_what_its_own_commit_added() -> None:
    """Objects, bytes and changes that the commit before had not; seconds since that one, and until it was seen."""
    clock = HandClock()
    settings, store = settings_of(4, inline_bytes_max=0, compression="none"), MemoryStore(clock=clock)
    before, before_unseen_s = dict[str, int](), 0.0
    async with (
        sb.open_backend(settings, store=store, clock=clock) as backend,
        aclosing(sb.watch(settings, store=store, clock=clock)) as entries,
    ):
        assert (await anext(entries)).kind == "claim"
        for number, (changes, wait_s, unseen_s) in enumerate(((3, 0.0, 0.5), (7, 60.0, 0.0), (0, 5.0, 2.0))):
            clock.now_s += wait_s
            backend.value_state("n", int).update(dict.fromkeys(range(changes), number))
            await backend.checkpoint(number, source=sb.SourceMark("query", 10 + number))
            committed_at_s = clock.now_s
            clock.now_s += unseen_s
            entry: Any = await anext(entries)
            found = await stored_bytes(store)
            added = found.keys() - before.keys()
            assert (entry.kind, entry.checkpoint_id, entry.source.batch_id) == ("commit", number, 10 + number)
            assert (entry.at_s, entry.lag_s) == (committed_at_s, unseen_s)
            assert entry.since_s == (None if not number else wait_s + before_unseen_s)
            assert (entry.new_objects, entry.new_bytes) == (len(added), sum(found[key] for key in added))
            assert entry.changes == changes
            before, before_unseen_s = found, unseen_s


@run_virtual
async def test_a_look_at_a_job_of_many_commits_begins_with_the_newest() -> None:
    """And then has each new one once."""
    settings, store = settings_of(4), MemoryStore()
    async with sb.open_backend(settings, store=store) as backend:
        for number in range(3):
            await backend.checkpoint(number)
        async with aclosing(sb.watch(settings, store=store)) as entries:
            seen = [await anext(entries)]
            for number in (3, 4):
                await backend.checkpoint(number)
            seen += [await anext(entries), await anext(entries)]
    assert [entry.checkpoint_id for entry in seen] == [2, 3, 4]
    assert [entry.sequence for entry in seen] == [3, 4, 5]
