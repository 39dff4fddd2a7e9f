"""Follows the log of a job: a record for each entry as it is made, by looking again and again. Nothing is pinned."""

from collections.abc import AsyncGenerator
from typing import Final

import anyio
import msgspec

from statebackend._codec.commit import Claim, Commit
from statebackend._upkeep.job_primary import JobPrimary, check_exists, open_job_primary
from statebackend._upkeep.sizes import source_of
from statebackend.abc import Clock, ObjectStore
from statebackend.abc.clock import SystemClock
from statebackend.errors import CorruptCommitError, InputError, MissingObjectError
from statebackend.ids import Handle, RestoreSource, SourceMark
from statebackend.settings import Settings

LOOK_EVERY_S: Final = 1.0


class LogEntry(msgspec.Struct, frozen=True):
    """One entry of the log. `kind`: "commit"; or "claim", when a writer opened the job and restored it.

    `since_s`: after the commit before it. `new_bytes`, `new_objects`: those it points into, and that commit did not.
    `changes`: the changes in those change sets. `lag_s`: how old it was when it was seen, by this host's clock.
    `problem`: why an entry cannot be shown. `restored`: where the state was read from when it was opened before it.
    """

    sequence: int
    kind: str
    at_s: float
    lag_s: float
    epoch: int | None = None
    checkpoint_id: int | None = None
    source: SourceMark | None = None
    since_s: float | None = None
    new_objects: int = 0
    new_bytes: int = 0
    changes: int = 0
    problem: str | None = None
    restored: RestoreSource | None = None


async def watch(
    settings: Settings,
    *,
    every_s: float = LOOK_EVERY_S,
    store: ObjectStore | None = None,
    clock: Clock | None = None,
) -> AsyncGenerator[LogEntry]:
    """Yield the newest entry of the job's log, and then each new one, for ever. It looks every `every_s` seconds.
    Close it where you leave early: `async with contextlib.aclosing(watch(...)) as entries`.

    Where a sweep was quicker, the entries that it deleted are passed over. Raises `InputError` if there is no such job,
    a `DataError` if it cannot be known where the log ends, `StoreError`.
    """
    if not every_s > 0:
        raise InputError("the seconds between two looks must be positive", every_s=every_s)
    clock = clock or SystemClock()
    async with open_job_primary(settings, store) as primary:
        seen, before = -1, None
        while True:
            end = await primary.log.end(at_least=None if seen < 0 else seen)
            check_exists(settings, [] if end is None else [end])
            assert end is not None
            end.check()
            for sequence in range(end.sequence if seen < 0 else seen + 1, end.sequence + 1):
                told, before = await _told(primary, sequence, before, clock)
                if told is not None:
                    yield told
            seen = end.sequence
            await anyio.sleep(every_s)


async def _told(
    primary: JobPrimary, sequence: int, before: Commit | None, clock: Clock
) -> tuple[LogEntry | None, Commit | None]:
    try:
        entry = await primary.log.load(sequence)
    except MissingObjectError:
        return None, before  # swept meanwhile
    except CorruptCommitError as error:
        return LogEntry(sequence, "damaged", at_s=clock.time(), lag_s=0.0, problem=str(error)), before
    if isinstance(entry, Claim):
        at_s = entry.claimed_at_s
        return LogEntry(sequence, "claim", at_s, max(0.0, clock.time() - at_s), entry.epoch), before
    old = set[Handle]() if before is None else {handle for part in before.ranges for handle in part.objects()}
    new = {handle for part in entry.ranges for handle in part.objects()} - old
    keys = {handle.key for handle in new}
    changes = sum(each.records for part in entry.ranges for each in part.changelog if each.segment.key in keys)
    return (
        LogEntry(
            sequence,
            "commit",
            entry.committed_at_s,
            max(0.0, clock.time() - entry.committed_at_s),
            entry.epoch,
            entry.checkpoint_id,
            entry.source,
            None if before is None else entry.committed_at_s - before.committed_at_s,
            len(new),
            sum(handle.length for handle in new),
            changes,
            restored=source_of(entry),
        ),
        entry,
    )
