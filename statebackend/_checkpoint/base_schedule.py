"""When an attempt at a range is to write bases: what a backend that stays open knows by itself."""

from statebackend._checkpoint.bases import first_interval_s, is_due
from statebackend.errors import MaterializationError
from statebackend.ids import Base, KeyGroupRange, RangeState, RocksDBBase
from statebackend.settings import Settings


class BasePace:
    """The pace of one range in one process. Whoever else writes its bases is seen by them."""

    def __init__(self, settings: Settings, key_groups: KeyGroupRange, now_s: float) -> None:
        self._settings = settings
        self._interval_ends_s = now_s + first_interval_s(settings.job, key_groups, settings.materialize_interval_s)
        self._pause_ends_s = now_s
        self._bases: tuple[Base | RocksDBBase, ...] = ()
        self._failures = 0

    def is_due(self, committed: RangeState, now_s: float) -> bool:
        """Whether to write bases for what is committed. Raises `MaterializationError` where that failed too often."""
        if self._failures > self._settings.materialize_failures_max:
            raise MaterializationError(
                "bases cannot be written: mend the store, then restart, and replay", failures=self._failures
            )
        if committed.all_bases != self._bases:
            self._bases = committed.all_bases
            self._interval_ends_s = now_s + self._settings.materialize_interval_s
        interval_is_over = self._settings.materialize_interval_s > 0 and self._interval_ends_s <= now_s
        return now_s >= self._pause_ends_s and is_due(committed, self._settings, interval_is_over=interval_is_over)

    def told(self, *, written: bool, now_s: float) -> None:
        """They were written, and an attempt that loses has them written again; or not, and not again for a while."""
        if written:
            self._failures = 0
        else:
            self._failures += 1
            self._pause_ends_s = now_s + self._settings.materialize_retry_delay_s * 2 ** (self._failures - 1)
