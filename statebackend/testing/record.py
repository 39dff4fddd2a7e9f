"""The record of one run of a proof: what was run, how much, what came of it. The page "How it is proven" shows them.

    docs/explanation/proof/<name>.json     one record each, written by the run itself, never by hand
    python -m tests.proof                  brings the page up to date with them; `--record` of a session calls for it

A session that proves something takes `--record FILE`, and prints the same table that it records.
"""

import datetime as dt
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

Cell = str | int | float


class ProofRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One run. `command` repeats it. `table`: rows of cells below `head`; `broken`: how many violations it has found.

    `run_on`: the day, as YYYY-MM-DD. `commit`: of the sources that were run, "?" outside of a repository. `notes`: one
    sentence each, for what the numbers do not say.
    """

    command: str
    run_on: str
    commit: str
    seconds: float
    broken: int
    head: tuple[str, ...]
    table: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def lines(self) -> Sequence[str]:
        """The table in Markdown. Numbers have separators between thousands."""
        rows = [self.head, tuple("---" for _ in self.head), *(tuple(map(_shown, row)) for row in self.table)]
        return ["| " + " | ".join(row) + " |" for row in rows]


def record_of(
    command: str,
    *,
    seconds: float,
    broken: int,
    head: Sequence[str],
    table: Sequence[Sequence[Cell]],
    notes: Sequence[str] = (),
) -> ProofRecord:
    """The record of a run that has ended now, of the sources in the current directory."""
    return ProofRecord(
        command=command,
        run_on=dt.datetime.now(tz=dt.UTC).date().isoformat(),
        commit=_commit(),
        seconds=round(seconds, 1),
        broken=broken,
        head=tuple(head),
        table=tuple(map(tuple, table)),
        notes=tuple(notes),
    )


def write_record(path: Path, record: ProofRecord) -> None:
    """Write it where the page finds it, in place of an older one. Raises `OSError`."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")


def read_record(path: Path) -> ProofRecord:
    """Raises `OSError`, or `msgspec.ValidationError` for what is no record."""
    return msgspec.json.decode(path.read_bytes(), type=ProofRecord)


def _shown(cell: Cell) -> str:
    return cell if isinstance(cell, str) else f"{cell:,}"


def _commit() -> str:
    asked = subprocess.run(("git", "rev-parse", "--short", "HEAD"), capture_output=True, text=True, check=False)  # noqa: S607
    return asked.stdout.strip() or "?"
