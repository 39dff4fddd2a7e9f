"""The table of `owners.md`, and how a test is bound to a row of it.

    @row("copy-late")
    async def test_...(disk: Disk) -> Fate:
        ...
        return watch.fate()

The test runs in virtual time and returns what it saw; the row says what it has to see.
"""

import functools
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from statebackend.testing.virtual_time import run_virtual

Fate = Literal["gone", "stays", "replaced", "never there"]

DOCUMENT = Path(__file__).parent / "owners.md"
HEADER = ["Row", "What", "Situation", "Owner", "Deleted by, when", "Fate"]


@dataclass(frozen=True)
class Row:
    row_id: str
    what: str
    situation: str
    owner: str
    deleted_by: str
    fate: str


def parse(text: str) -> list[Row]:
    """The rows of every table in `text` that has our header, in order."""
    rows: list[Row] = []
    inside = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if cells == HEADER:
            inside = True
        elif not cells:
            inside = False
        elif inside and set("".join(cells)) != {"-"}:
            rows.append(Row(*cells))
    return rows


ROWS = parse(DOCUMENT.read_text(encoding="utf-8"))
TABLE: Mapping[str, Row] = {each.row_id: each for each in ROWS}
FATES = frozenset(get_args(Fate))


def row(row_id: str) -> Callable[[Callable[..., Coroutine[Any, Any, Fate]]], Callable[..., None]]:
    """Bind a test to the row. `KeyError` where the table has none of that name."""
    expected = TABLE[row_id].fate

    def bind(test: Callable[..., Coroutine[Any, Any, Fate]]) -> Callable[..., None]:
        @functools.wraps(test)
        async def proof(*args: Any, **kwargs: Any) -> None:
            seen = await test(*args, **kwargs)
            assert seen == expected, f"the table says {expected!r}"

        return run_virtual(proof)

    return bind
