"""The part of a state that readers ask for, by the same keywords in Python, the shell and Spark."""

from collections.abc import Sequence
from typing import Final, NamedTuple, TypedDict

from statebackend._codec.commit import Commit
from statebackend._codec.plain import key_of_shown
from statebackend._log.moments import Moment
from statebackend._state.time.ttl import TimeToLive
from statebackend._state.values import Upcast
from statebackend.errors import InputError, KeyTypeError
from statebackend.ids import Key, KeyGroupRange, Lifetime, StateDescriptor


class Expiry(NamedTuple):
    """Entries written `seconds` before `now_s`, or earlier, have expired.

    `now_s` is `None` where there is no clock: before the job's first time, what is written has no time either.
    `lifetime`: that which the commit says of the state.
    """

    seconds: float
    now_s: float | None
    lifetime: Lifetime

    def has(self, stamp: float | None) -> bool:
        """True if what was written then has expired. Raises `InputError` if no clock tells."""
        if stamp is None and self.lifetime.untimed_since_s is None:
            return False
        return not self.lifetime.is_live(stamp, self.seconds, self.now())

    def now(self) -> float:
        """The time. Raises `InputError` without a clock."""
        if self.now_s is None:
            raise InputError(
                "the checkpoint has no clock to expire values by, and they were written by another one: give the"
                " time-to-live a `now`"
            )
        return self.now_s


class WhatToRead(TypedDict, total=False):
    """The keywords of `read_state`, which says what they mean, of `read_batches` and of `export`."""

    key_groups: tuple[int, int] | KeyGroupRange | None
    keys: Sequence[Key] | None
    columns: Sequence[str] | None
    checkpoint_id: int | None
    savepoint: str | None
    at: Moment | None
    ttl: TimeToLive | None
    migrate: Upcast | Sequence[Upcast]
    key_as_json: bool


class AskedOfState:
    """The same, checked: the part of a state, and the commit, that are asked for."""

    def __init__(
        self,
        *,
        key_groups: tuple[int, int] | KeyGroupRange | None = None,
        keys: Sequence[Key] | None = None,
        columns: Sequence[str] | None = None,
        checkpoint_id: int | None = None,
        savepoint: str | None = None,
        at: Moment | None = None,
        ttl: TimeToLive | None = None,
        migrate: Upcast | Sequence[Upcast] = (),
        key_as_json: bool = False,
    ) -> None:
        """Raises `InputError`, `KeyTypeError`."""
        self.key_groups: Final = None if key_groups is None else range_from(key_groups)
        self.keys: Final = None if keys is None else _keys(keys)
        self.columns: Final = columns
        self.checkpoint_id: Final = checkpoint_id
        self.savepoint: Final = savepoint
        self.at: Final = at
        self.ttl: Final = ttl
        self.migrate: Final[Sequence[Upcast]] = (migrate,) if callable(migrate) else migrate
        self.key_as_json: Final = key_as_json

    def expiry(self, commit: Commit, state: StateDescriptor) -> Expiry | None:
        """By the time-to-live, as of now by its own clock, or by the clock that the commit has."""
        if self.ttl is None:
            return None
        now_s = None if commit.clock is None else commit.clock.now_s
        if self.ttl.now is not None:
            now_s = self.ttl.read_clock()
        return Expiry(self.ttl.seconds, now_s, state.lifetime or Lifetime(self.ttl.seconds))


def range_from(key_groups: tuple[int, int] | KeyGroupRange) -> KeyGroupRange:
    """The range with this first and last key group. Raises `InputError`."""
    if isinstance(key_groups, KeyGroupRange):
        return key_groups
    try:
        return KeyGroupRange(*key_groups)
    except (TypeError, ValueError) as error:
        raise InputError("key_groups are the first and the last, both included", key_groups=key_groups) from error


def _keys(keys: Sequence[Key]) -> frozenset[Key]:
    if isinstance(keys, str | bytes):
        raise InputError("keys are a sequence of keys: put this one into a list", keys=keys)
    try:
        return frozenset(map(key_of_shown, keys))
    except TypeError as error:
        raise KeyTypeError("a key is a str, an int, bytes, or a non-empty tuple of them: convert it") from error
