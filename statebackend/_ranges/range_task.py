"""The task of an attempt at a range, and the commit that it begins with: how that is handed out, what a task reads.

    small         its bytes come along with every task
    large         each task reads the part of its own range, whose place and checksum come along
    otherwise     each task reads the whole: when ranges were cut anew, or operator state is to be divided among all,
                  or copied to a range that has none yet

The whole is what a task falls back on. One task of a host reads it if it carries changes, for a local copy of it.
"""

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from statebackend._backend.stores import Primary
from statebackend._checkpoint.restore import LocalCopies
from statebackend._codec.commit import Commit
from statebackend._codec.commit_parts import CommitParts, parts_of
from statebackend._log.coordinator import CheckpointCoordinator
from statebackend._log.log_reader import LogReader
from statebackend._log.names import entry_key, sequence_of
from statebackend._ranges.shared_local_copies import HostCopies
from statebackend._state.kinds.operator_state import lack_copies, mode_of
from statebackend.errors import CorruptCommitError, ObjectNotFoundError
from statebackend.ids import CheckpointId, ClockMark, Epoch, KeyGroupRange
from statebackend.settings import Settings

_logger: Final = logging.getLogger(__name__)


class CommittedBase(msgspec.Struct, frozen=True):
    """A commit as it is handed to the owners of parts: its key, and its bytes, or where its parts lie, or neither."""

    key: str
    body: bytes = b""
    parts: CommitParts | None = None


class RangeTask(msgspec.Struct, frozen=True):
    """The task of one attempt at a range. It pickles; the secrets of `settings` do not.

    `owners` are all ranges of this run, `key_groups` among them. `epoch` is the coordinator's, `base` the commit that
    is continued, `None` before the first: `committed_base`. `clock`: the job's in this batch, if it has one.
    """

    settings: Settings
    key_groups: KeyGroupRange
    owners: tuple[KeyGroupRange, ...]
    epoch: Epoch
    checkpoint_id: CheckpointId
    base: CommittedBase | None
    clock: ClockMark | None = None


class TaskBase(msgspec.Struct, frozen=True):
    """The base of a task, `None` before the first commit, and its bytes; without them it has only the task's range."""

    commit: Commit | None
    body: bytes = b""


def committed_base(
    coordinator: CheckpointCoordinator, owners: Sequence[KeyGroupRange], *, body_bytes_max: int
) -> CommittedBase | None:
    """The commit that the coordinator stands on, for tasks of these owners; `None` before the first.

    Its bytes go along if they are not more than `body_bytes_max`.
    """
    base, body = coordinator.base, coordinator.base_body
    if base is None:
        return None
    key = entry_key(base.sequence)
    if len(body) <= body_bytes_max:
        return CommittedBase(key, body)
    keeps_own = (
        not lack_copies(base.ranges, base.states)
        if base.epoch == coordinator.epoch
        else all(mode_of(state.kind) is None for state in base.states)
    )
    if keeps_own and [part.key_groups for part in base.ranges] == list(owners):
        return CommittedBase(key, parts=parts_of(base, key, body))
    return CommittedBase(key)


@asynccontextmanager
async def open_base(
    task: RangeTask, primary: Primary, host: HostCopies, local: LocalCopies | None
) -> AsyncGenerator[TaskBase]:
    """The base of a task, read if it did not come along. Raises `MissingObjectError`, `CorruptCommitError`."""
    handed, log = task.base, LogReader(primary.store, task.settings.job, host.threads)
    if handed is None:
        yield TaskBase(None)
        return
    if handed.parts is None:
        yield await _whole(handed, log)
        return
    async with host.reading_whole(local, handed.parts, task.epoch) as reads_whole:
        own = None if reads_whole else await _own_part(task, handed.parts, primary)
        yield await _whole(handed, log) if own is None else TaskBase(own)


async def _whole(handed: CommittedBase, log: LogReader) -> TaskBase:
    sequence = sequence_of(handed.key)
    assert sequence is not None, "the key of a commit"
    commit = await log.load_commit(sequence, body=handed.body)
    return TaskBase(commit, log.take_body(commit)[handed.key])


async def _own_part(task: RangeTask, parts: CommitParts, primary: Primary) -> Commit | None:
    """The commit with the task's range alone; `None` if what lies there is not its part."""
    place = task.owners.index(task.key_groups)
    offset, length, _ = parts.places[place]
    try:
        return parts.decode(await primary.store.get_range(parts.whole.key, offset, length), place, task.key_groups)
    except (CorruptCommitError, ObjectNotFoundError) as error:  # the whole says what is wrong, if it is
        _logger.warning("a part of a commit is not what it was, so all of it is read: %s", error)
        return None
