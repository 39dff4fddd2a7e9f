"""The meanings of the answers of a cloud, by what the caller can do about them.

The code of an answer decides; one that is not known is judged by the HTTP status: 5xx may pass, 4xx will not.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from statebackend.errors import (
    BucketNotFoundError,
    ClockSkewError,
    InputError,
    ObjectExistsError,
    ObjectNotFoundError,
    StateBackendError,
    StoreAccessError,
    StoreFullError,
    StoreThrottledError,
    StoreUnavailableError,
    UnfitStoreError,
)
from statebackend.objectstore.cloud.cloud_requests import BeyondTheEndError

Meaning = tuple[type[StateBackendError], str]
"""The class of the error, and its sentence."""


class Meanings:
    """The meanings of a cloud's answers, in its own words: the name of the `cloud`, and of what `holds` the objects.

    `keys`: how long its keys may be.
    """

    def __init__(self, cloud: str, holds: str, *, keys: str) -> None:
        self.exists: Final[Meaning] = (ObjectExistsError, "there is already an object at that key")
        self.missing: Final[Meaning] = (ObjectNotFoundError, "no object at that key")
        self.nowhere: Final[Meaning] = (
            BucketNotFoundError,
            f"there is no such {holds}: make it, or correct the primary",
        )
        self.skewed: Final[Meaning] = (ClockSkewError, f"this machine's clock is too far from {cloud}'s: set it")
        self.long_key: Final[Meaning] = (
            InputError,
            f"{cloud} takes keys of at most {keys}, including the primary's prefix",
        )
        self.full: Final[Meaning] = (StoreFullError, f"{cloud} has no room: make some")
        self.busy: Final[Meaning] = (StoreThrottledError, f"{cloud} asks for fewer requests")
        self.unfit: Final[Meaning] = (UnfitStoreError, "this server cannot do what was asked of it: use another")
        self.may_pass: Final[Meaning] = (StoreUnavailableError, f"{cloud} failed")
        self.beyond: Final[Meaning] = (BeyondTheEndError, "the range begins beyond the end of the object")
        self.refused: Final[Meaning] = (
            StoreAccessError,
            f"{cloud} refuses: correct the credentials, or what they may do",
        )
        self._by_status: Final[Mapping[int, Meaning]] = {
            404: self.missing,
            408: self.may_pass,
            412: self.exists,
            429: self.busy,
            501: self.unfit,
            503: self.busy,
            507: self.full,
        }

    def of(
        self,
        status: int,
        code: str,
        by_code: Mapping[str, Meaning],
        by_status: Mapping[int, Meaning] = MappingProxyType({}),
    ) -> Meaning:
        """The meaning of an answer: `by_code`, else `by_status`, the cloud's own before what all clouds mean by it."""
        known = by_code.get(code) or by_status.get(status) or self._by_status.get(status)
        return known or (self.may_pass if status >= 500 else self.refused)
