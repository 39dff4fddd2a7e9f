"""Commits and claims as the log takes them, and readers and writers of a log on any store."""

from statebackend._codec.commit import Claim, Commit
from statebackend._log.log_reader import LogReader
from statebackend._log.log_writer import LogWriter
from statebackend._retry import RetryPolicy
from statebackend.abc import Clock, ObjectStore
from statebackend.abc.clock import SystemClock
from statebackend.ids import CheckpointId, CommitSequence, Epoch, RangeState, all_key_groups
from tests.at_work import plenty


def log_on(store: ObjectStore) -> LogReader:
    return LogReader(store, "fleet", plenty())


def writer_on(
    store: ObjectStore, stamp: str = "claim", *, timeout_s: float = 60.0, clock: Clock | None = None
) -> LogWriter:
    """`stamp`: of its claims."""
    policy = RetryPolicy(attempts_max=3, delay_s=0.0)
    return LogWriter(
        store,
        log_on(store),
        policy=policy,
        timeout_s=timeout_s,
        clock=clock or SystemClock(),
        new_stamp=lambda: stamp,
        release="",
    )


def commit(
    sequence: int,
    *,
    stamp: str = "mine",
    checkpoint_id: int | None = None,
    epoch: int = 1,
    parent: int | None = None,
) -> Commit:
    """By default the id is ten times the sequence, and the parent the entry before."""
    before = CommitSequence(sequence - 1) if sequence else None
    return Commit(
        job="fleet",
        sequence=CommitSequence(sequence),
        checkpoint_id=CheckpointId(10 * sequence if checkpoint_id is None else checkpoint_id),
        epoch=Epoch(epoch),
        parent=before if parent is None else CommitSequence(parent),
        stamp=stamp,
        max_parallelism=128,
        ranges=(RangeState(all_key_groups(128), ()),),
        states=(),
    )


async def claim(writer: LogWriter) -> Claim:
    """Open the job for writing, as `open_backend` does."""
    claimed = await writer.claim(await writer.find_end())
    assert claimed is not None
    return claimed
