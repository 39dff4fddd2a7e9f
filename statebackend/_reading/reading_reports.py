"""The records that reading returns. They need no Arrow."""

from typing import Any, Literal

import msgspec


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
