"""The records that reading returns. They need no Arrow."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from statebackend.ids import SourceMark


class Difference(msgspec.Struct, frozen=True):
    """A key that one checkpoint has and the other has not, or has another value for. In values that JSON has.

    `before` is `None` for a key that was added, `after` for one that was removed.
    """

    state: str
    change: Literal["added", "changed", "removed"]
    key: Any
    before: Any
    after: Any


class ExportReport(msgspec.Struct, frozen=True):
    """A file that was written: `rows` of a state as of a checkpoint, in `size_bytes`."""

    state: str
    checkpoint_id: int
    path: str
    rows: int
    size_bytes: int


class KeyChange(msgspec.Struct, frozen=True, kw_only=True):
    """A commit that changed a key, with its value before and after it: `None` for none.

    `states`: the names of all states in which it changed that key. The two values may be equal.
    """

    checkpoint_id: int
    sequence: int
    committed_at_s: float
    source: SourceMark | None
    before: Any
    after: Any
    states: tuple[str, ...]


class KeyHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of a key of a state, newest first, since a checkpoint, which was committed at `since_s`.

    `is_whole`: nothing lies before, since the job began with that checkpoint, whose own changes are told. Otherwise
    `value` is what the key had at it, `None` for none, and what led there is not kept or was not asked for.
    """

    state: str
    key: Any
    changes: Sequence[KeyChange]
    checkpoint_id: int
    since_s: float
    value: Any
    is_whole: bool
