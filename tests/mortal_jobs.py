"""A job over the network whose processes are killed: their lives, and what must hold after each death."""

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import statebackend as sb
from statebackend._log.names import PROBE_KEY
from statebackend.abc import ObjectStore
from statebackend.abc.clock import SystemClock
from statebackend.testing import FaultyStore
from tests.backend.killed_child import Suicide, apply, batch_changes
from tests.backend.reachable import reachable_keys
from tests.mortals import Report, last_word

Life = Callable[..., None]
Opening = Callable[[], AbstractAsyncContextManager[ObjectStore]]


async def commit_for_ever(
    report: Report, settings: sb.Settings, opening: AbstractAsyncContextManager[ObjectStore], death: dict[str, Any]
) -> None:
    """Commit batches from the one after the newest, until somebody kills this process; with a `death`, it itself."""
    async with opening as opened:
        store = FaultyStore(opened)
        async with sb.open_backend(settings, store=store) as backend:
            state = backend.value_state("n", int)
            newest = backend.newest.source if backend.newest is not None else None
            batch = 0 if newest is None else newest.batch_id + 1
            if death:
                store.plan.append(Suicide(**death))
            while True:
                apply(state, batch_changes(batch))
                await backend.checkpoint(backend.next_checkpoint_id, source=sb.SourceMark("q", batch))
                report(batch)
                batch += 1


async def check(settings: sb.Settings, acknowledged: int) -> None:
    """The state is that of a dictionary to which every batch up to the committed one was applied once."""
    async with sb.open_backend(settings, read_only=True) as backend:
        source = backend.newest.source if backend.newest is not None else None
        committed = -1 if source is None else source.batch_id
        assert committed >= acknowledged
        expected: dict[sb.Key, int] = {}
        for batch in range(committed + 1):
            apply(expected, batch_changes(batch))
        assert dict(backend.value_state("n", int)) == expected


async def check_swept(settings: sb.Settings, opening: AbstractAsyncContextManager[ObjectStore]) -> None:
    """Go on by a checkpoint, let all of the job grow old, and sweep it: what is reachable stays, and nothing else."""
    async with sb.open_backend(settings) as backend:
        source = backend.newest.source if backend.newest is not None else None
        await backend.checkpoint(backend.next_checkpoint_id, source=source)
    for _ in range(2):  # the mark of how far the sweep before went is garbage only for the next one
        report = await sb.sweep(settings, dry_run=False, min_age_s=0.0, clock=DaysAhead())
        assert (report.failures, report.stopped) == ((), None)
    async with opening as store:
        keys = [info.key async for info in store.list("fleet/")]
        objects = {key.removeprefix("fleet/"): await store.get(key) for key in keys}
    assert objects.keys() - {PROBE_KEY} == reachable_keys(objects, "fleet", retained=settings.checkpoints_retained)


async def check_killed_from_outside(
    life: Life, settings: sb.Settings, *place: Any, lives: int, chance: random.Random
) -> None:
    """The lives of one job, each ended while it works: each continues where the last one was acknowledged."""
    acknowledged = -1
    for _ in range(lives):
        acknowledged = max(acknowledged, last_word(life, *place, words=chance.randrange(1, 8)))
        await check(settings, acknowledged)


async def check_killed_at_every_request(
    life: Life, settings: sb.Settings, *place: Any, opening: Opening, nths: Sequence[int]
) -> None:
    """One job, killed at each of these requests, before and after the request took effect."""
    acknowledged = -1
    for nth in nths:
        for moment in ("before", "after"):
            acknowledged = max(acknowledged, last_word(life, *place, nth=nth, moment=moment))
            await check(settings, acknowledged)
            await check_swept(settings, opening())
    assert acknowledged >= 1


class DaysAhead(SystemClock):
    """A clock for which all that lies in a cloud is old."""

    def time(self) -> float:
        return super().time() + 3 * 86_400.0
