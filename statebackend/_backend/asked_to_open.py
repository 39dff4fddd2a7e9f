"""The arguments of an opening, checked; and a state that it may go on from in place of restoring one."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, Protocol, TypedDict

from statebackend._backend.assembly import Restored
from statebackend._backend.copy_writers import OpenUploader
from statebackend._backend.tables import Tables
from statebackend._cache.download_cache import DownloadCache
from statebackend._codec.commit import Commit
from statebackend._log.moments import Moment, moment_s
from statebackend._observers import Observers
from statebackend.abc import Clock, ObjectStore, Observer, StateChangeUploader
from statebackend.abc.clock import SystemClock
from statebackend.errors import InputError, SettingsError
from statebackend.ids import CommitSummary, KeyGroupRange, all_key_groups
from statebackend.settings import Settings


class Warm(Protocol):
    """The state of a whole job, held in memory or in files by one who follows it."""

    async def at(self, base: Commit | None) -> tuple[Tables, Restored]:
        """Bring the state to `base`, behind which the job was just claimed, and give its tables away.

        They are closed by their owner, after the backend. Raises as a restore, and `FencedError` if the job was claimed
        again meanwhile.
        """
        ...


class HowToOpen(TypedDict, total=False):
    """The keywords of `open_backend`, which says what they mean, for a whole job as for an owner of a part."""

    checkpoint_id: int | None
    savepoint: str | None
    at: Moment | None
    store: ObjectStore | None
    local_stores: Sequence[ObjectStore] | None
    uploader: StateChangeUploader | OpenUploader | None
    cache: DownloadCache | None
    clock: Clock | None
    observer: Observer | None
    read_only: bool


BeforeClaim = Callable[[CommitSummary | None], None]
"""Gets the commit to go on from before the job is claimed. What it raises is raised, and nobody was fenced."""


class AskedToOpen:
    """The arguments of one call of `open_backend`. `warm`: a state that is held already, to go on from."""

    def __init__(
        self,
        settings: Settings,
        *,
        key_groups: KeyGroupRange | None = None,
        owners: Sequence[KeyGroupRange] | None = None,
        checkpoint_id: int | None = None,
        savepoint: str | None = None,
        at: Moment | None = None,
        store: ObjectStore | None = None,
        local_stores: Sequence[ObjectStore] | None = None,
        uploader: StateChangeUploader | OpenUploader | None = None,
        cache: DownloadCache | None = None,
        clock: Clock | None = None,
        observer: Observer | None = None,
        read_only: bool = False,
        warm: Warm | None = None,
    ) -> None:
        """Raises `SettingsError` if the arguments contradict each other, `InputError` for what is no key group."""
        self.settings: Final = settings
        self.key_groups: Final = key_groups
        self.owners: Final = owners
        self.checkpoint_id: Final = checkpoint_id
        self.savepoint: Final = savepoint
        self.at: Final = at
        self.store: Final = store
        self.local_stores: Final = local_stores
        self.uploader: Final = uploader
        self.cache: Final = cache
        self.clock: Final[Clock] = clock or SystemClock()
        self.observer: Final = Observers(observer or Observer())
        self.read_only: Final = read_only
        self.warm: Final = warm
        self.before_claim: BeforeClaim = lambda _: None
        self._check()

    @property
    def claims(self) -> bool:
        """False for an owner, which must not claim: that would fence its coordinator."""
        return self.key_groups is None and not self.read_only

    @property
    def may_pass_over(self) -> bool:
        """True if an older commit will do. Each owner of a part would have to go back to the same one."""
        is_exact = self.key_groups is not None or self.checkpoint_id is not None or self.savepoint is not None
        is_exact = is_exact or self.at is not None
        return self.settings.fall_back_to_older and not is_exact

    @property
    def at_s(self) -> float | None:
        """The moment in seconds, if one is asked for. Raises `InputError`."""
        return None if self.at is None else moment_s(self.at, now_s=self.clock.time())

    @property
    def owned(self) -> KeyGroupRange:
        """All key groups, or those of an owner."""
        return all_key_groups(self.settings.max_parallelism) if self.key_groups is None else self.key_groups

    def _check(self) -> None:
        for each in (self.owned, *(self.owners or ())):
            _check_owned(each, self.settings.max_parallelism)
        if self.owners is not None and self.key_groups is None:
            raise SettingsError(
                "owners share a job: say which key groups are this one's, all of them if it is the only one"
            )
        for one, following in pairwise(sorted(self.owners or ())):
            if following.first <= one.last:  # operator state would be dealt to one owner too many
                raise SettingsError("owners overlap: give each range once", owners=[str(one), str(following)])
        if self.at is not None and not self.read_only:
            raise SettingsError(
                "a moment is only read: add read_only=True, or go on from a checkpoint by its id", at=str(self.at)
            )
        if self.cache is not None and self.cache.job != self.settings.job:
            raise SettingsError(
                "the download cache is that of another job: open one with these settings",
                job=self.settings.job,
                cache_job=self.cache.job,
            )


def _check_owned(given: object, max_parallelism: int) -> None:
    every = all_key_groups(max_parallelism)
    if not isinstance(given, KeyGroupRange) or not given or given.intersection(every) != given:
        raise InputError(
            "an owner has a KeyGroupRange of the job's key groups, from first to last: KeyGroupRange(0, 63)",
            given=given,
            max_parallelism=max_parallelism,
        )
