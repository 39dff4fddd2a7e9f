"""Decides when bases are due: after enough changelog or enough time, and never just after a failure. Pure.

A changelog is compared with the bases it would be replaced by, once it takes long enough to replay: that depends on the
number of its changes, and hardly on its bytes, unless they are many.

Every backend has a schedule, which learns whether its bases could be written. An attempt at a range is too short for
that: the process has another schedule for each range, which outlives the attempts.
"""

import zlib
from typing import Final

import msgspec

from statebackend._checkpoint.materialization.layers import first_to_merge, tail
from statebackend._checkpoint.materialization.tiers import members_in
from statebackend.errors import MaterializationError
from statebackend.ids import Base, KeyGroupRange, RangeState, RocksDBBase

ROCKSDB_CHANGES_SHARE: Final = 0.5
"""Replaying a change into RocksDB takes twice as long as on the heap, or longer."""
OPENING_HANDLES_MAX: Final = 64
"""An opening asks for bases of a changelog with this many change sets, where `handles_max` is not smaller.

It has just read the whole state and as many files, so bases cost a run a small part of what it costs anyway, and only
every 64th run of one batch writes them.
"""
ROCKSDB_RATIO_SHARE: Final = 1 / 64
"""Of a RocksDB base only new files are written: if a 64th of the entries has changed, about a tenth of its bytes."""


class BaseTriggers(msgspec.Struct, frozen=True, kw_only=True):
    """The conditions that make bases due: see the settings `materialize_*`. 0 turns a trigger off."""

    interval_s: float = 0.0
    handles_max: int = 0
    changelog_ratio: float = 0.0
    changelog_bytes_min: int = 0
    changelog_changes_min: int = 0
    failures_max: int = 0
    retry_delay_s: float = 0.0


class BaseSchedule:
    """The schedule of the bases of `key_groups`. `now_s` is the time of a monotonic clock throughout."""

    def __init__(self, triggers: BaseTriggers, job: str, key_groups: KeyGroupRange, *, now_s: float) -> None:
        self._triggers = triggers
        self._interval_ends_s = now_s + first_interval_s(job, key_groups, triggers.interval_s)
        self._pause_ends_s = now_s
        self._bases: tuple[Base | RocksDBBase, ...] = ()
        self._failures = 0
        self._failure: Exception | None = None

    @property
    def failures(self) -> int:
        """Number of times in a row that bases could not be written."""
        return self._failures

    def check(self) -> None:
        """Raise `MaterializationError` if bases could not be written too many times in a row."""
        if self._failures > self._triggers.failures_max:
            raise MaterializationError(
                "bases cannot be written: mend the store, then reopen, and replay", failures=self._failures
            ) from self._failure

    def is_due(
        self,
        committed: RangeState,
        now_s: float,
        *,
        in_files: bool,
        in_layers: bool = False,
        due: bool = False,
        opening: bool = False,
    ) -> bool:
        """True if bases of what is committed should be written now.

        `in_files`: they would be RocksDB's files, and not entries. `in_layers`: what changes may go into a layer
        instead. `due`: they are due by another schedule; only the pause after a failure is heeded. `opening`: all of it
        was just read.
        """
        interval_is_over = self._triggers.interval_s > 0 and self._interval_ends_s <= now_s
        due = due or is_due(
            committed,
            self._triggers,
            interval_is_over=interval_is_over,
            in_files=in_files,
            in_layers=in_layers,
            opening=opening,
        )
        return due and now_s >= self._pause_ends_s

    def first_to_merge(self, committed: RangeState) -> int | None:
        """The first layer that a new one takes in; `None` if it is time for a base."""
        return first_to_merge(committed, ratio=self._triggers.changelog_ratio, base_bytes=_base_bytes(committed))

    def begin_interval(self, now_s: float) -> None:
        """Count the interval from now."""
        self._interval_ends_s = now_s + self._triggers.interval_s

    def note_bases(self, committed: RangeState, now_s: float) -> None:
        """Count the interval from now if `committed` has other bases than last time, whichever process wrote them.

        An attempt cannot count from when it wrote bases: it may lose, and then they are in no commit.
        """
        if committed.all_bases != self._bases:
            self._bases = committed.all_bases
            self.begin_interval(now_s)

    def succeeded(self) -> None:
        """Bases were written."""
        self._failures, self._failure = 0, None

    def failed(self, now_s: float, error: Exception | None = None) -> None:
        """Bases could not be written. Nothing is due for a while: twice as long each time."""
        self._failures += 1
        self._failure = error
        self._pause_ends_s = now_s + self._triggers.retry_delay_s * 2 ** (self._failures - 1)


def is_due(
    state: RangeState,
    triggers: BaseTriggers,
    *,
    interval_is_over: bool,
    in_files: bool = False,
    in_layers: bool = False,
    opening: bool = False,
) -> bool:
    """True if a trigger asks for bases of `state`. Never without a changelog: there is nothing to replace.

    `in_files`: the bases would be RocksDB's files. `in_layers`: layers count for nothing, since nobody replays them,
    and what is behind them is not compared with the bases, since it is not those that are written. `opening`: all of
    the state was just read.
    """
    if in_layers:
        state = msgspec.structs.replace(state, changelog=tuple(tail(state.changelog)))
    if not state.changelog:
        return False
    handles_max = min(triggers.handles_max, OPENING_HANDLES_MAX) if opening else triggers.handles_max
    if interval_is_over or 0 < handles_max <= members_in(state.changelog):
        return True
    if triggers.changelog_ratio == 0:
        return False
    log_bytes, limit_bytes = (
        sum(handle.length for handle in state.changelog),
        0.0 if in_layers else triggers.changelog_ratio * _base_bytes(state),
    )
    return log_bytes >= max(triggers.changelog_bytes_min, limit_bytes) or _is_long(
        state, triggers, log_bytes, limit_bytes, in_files=in_files
    )


def _is_long(state: RangeState, triggers: BaseTriggers, log_bytes: int, limit_bytes: float, *, in_files: bool) -> bool:
    """True if the changelog has many changes, and is large enough to be worth a base."""
    changes_min: float = triggers.changelog_changes_min
    if in_files:
        changes_min *= ROCKSDB_CHANGES_SHARE
        limit_bytes *= ROCKSDB_RATIO_SHARE
        columns_bytes = sum(base.columns_bytes for base in state.rocksdb)  # all of them are written again
        limit_bytes = max(limit_bytes, triggers.changelog_ratio * columns_bytes)
    return 0 < changes_min <= sum(handle.records for handle in state.changelog) and log_bytes >= limit_bytes


def first_interval_s(job: str, key_groups: KeyGroupRange, interval_s: float) -> float:
    """Length of the first interval: any part of `interval_s`, but the same each time for these key groups of this job.

    Otherwise all jobs and owners that start together would write their bases together for ever (FLINK-26306).
    """
    return zlib.crc32(f"{job} {key_groups}".encode()) / 2**32 * interval_s


def _base_bytes(state: RangeState) -> float:
    """Stored bytes of the bases, each by its live share: what is stale in them does not make them worth keeping."""
    return sum(base.size_bytes * _live_share(base) for base in state.all_bases)


def _live_share(base: Base | RocksDBBase) -> float:
    return base.live / base.key_groups_written if base.key_groups_written else 1.0
