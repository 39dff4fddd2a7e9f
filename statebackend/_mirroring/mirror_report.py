"""The record that `mirror_once` returns."""

import msgspec


class MirrorReport(msgspec.Struct, frozen=True, kw_only=True):
    """The work of a mirror so far: its `steps`, the `commits` that they carried over, and their `rows`.

    `checkpoint_id`, `committed_at_s`: of the commit that the table has now; `None` where the state has no key yet.
    `anew`: why it started from the whole state, each time that it did. `view`: the text of a query for the newest row
    of each key, of a `log`.
    """

    name: str
    steps: int = 0
    commits: int = 0
    rows: int = 0
    checkpoint_id: int | None = None
    committed_at_s: float | None = None
    anew: tuple[str, ...] = ()
    view: str | None = None
