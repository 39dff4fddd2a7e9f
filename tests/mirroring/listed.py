"""A table in memory, which fails where it is told to."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from statebackend._mirroring.target import BEGIN, GONE, MirrorMark, MirrorRows, MirrorTable, MirrorTarget

MIRRORED: Final = ("key", "key_group", "checkpoint_id", "batch_id", "committed_at", "op", "generation")


class Listed(MirrorTarget):
    """Keeps the value of each key. `failures`: what its next steps raise, `None` for one that is written."""

    forms = ("table", "log")

    def __init__(self, *failures: BaseException | None) -> None:
        self.failures = [*failures]
        self.rows: dict[str, Any] = {}
        self.mark = MirrorMark(is_empty=True)

    @property
    def place(self) -> str:
        return "a list"

    async def find(self) -> MirrorMark:
        return self.mark

    async def fit(self, table: MirrorTable) -> None:
        pass

    async def write(self, rows: MirrorRows) -> None:
        if self.failures and (failure := self.failures.pop(0)) is not None:
            raise failure
        if rows.is_whole:
            self.rows.clear()
        for batch in rows.batches():
            for row in batch.to_pylist():
                self.rows.pop(row["key"], None)
                if row["op"] not in (*GONE, BEGIN):
                    self.rows[row["key"]] = value_of(row, MIRRORED)
        self.mark = MirrorMark(rows.mirror_id, rows.number)


def value_of(row: Mapping[str, Any], ours: Sequence[str] = ("key", "key_group")) -> Any:
    """`ours`: the columns that are not the state's. What a state calls as one of them has another name in a table."""
    rest = {name.removeprefix("value."): _plain(each) for name, each in row.items() if name not in ours}
    return rest["value"] if list(rest) == ["value"] else rest


def _plain(value: Any) -> Any:
    """Maps as dicts, whatever reads them."""
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        items = [_plain(each) for each in value]
        return dict(items) if items and all(isinstance(each, tuple) for each in value) else items
    return value
