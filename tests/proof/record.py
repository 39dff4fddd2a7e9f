"""The record of one run of a proof: what was run, how much, what came of it. The page "How it is proven" shows them.

    docs/explanation/proof/<name>.json     one record each, written by the run itself, never by hand
    python -m tests.proof                  brings the page up to date with them; `--record` of a session calls for it

A session that proves something takes `--record FILE`, and prints the same table that it records.
"""

import datetime as dt
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from statebackend.errors import InputError

Cell = str | int | float


def table_of(head: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Sequence[str]:
    """Lines of Markdown. Numbers have separators between thousands."""
    texts = [head, ["---" for _ in head], *([_shown(cell) for cell in row] for row in rows)]
    return ["| " + " | ".join(row) + " |" for row in texts]


class ProofRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One run. `command` repeats it. `table`: rows of cells below `head`; `broken`: how many violations it has found.

    `run_on`: the day, as YYYY-MM-DD. `commit`: of the sources that were run, "?" outside of a repository. `notes`: one
    sentence each, for what the numbers do not say. `met`: of a simulation, what has happened in how many of its runs.
    """

    command: str
    run_on: str
    commit: str
    seconds: float
    broken: int
    head: tuple[str, ...]
    table: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    met: Mapping[str, int] = {}

    def lines(self) -> Sequence[str]:
        """The table in Markdown."""
        return table_of(self.head, self.table)


def record_of(
    command: str,
    *,
    seconds: float,
    broken: int,
    head: Sequence[str],
    table: Sequence[Sequence[Cell]],
    notes: Sequence[str] = (),
    met: Mapping[str, int] | None = None,
) -> ProofRecord:
    """The record of a run that has ended now, of the sources in the current directory."""
    return ProofRecord(
        command=command,
        run_on=dt.datetime.now(tz=dt.UTC).date().isoformat(),
        commit=current_commit(),
        seconds=round(seconds, 1),
        broken=broken,
        head=tuple(head),
        table=tuple(map(tuple, table)),
        notes=tuple(notes),
        met=met or {},
    )


def write_record(path: Path, record: ProofRecord) -> None:
    """Write it where the page finds it, in place of an older one. Raises `OSError`."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")


def read_record(path: Path) -> ProofRecord:
    """Raises `OSError`, or `msgspec.ValidationError` for what is no record."""
    return msgspec.json.decode(path.read_bytes(), type=ProofRecord)


class SeedPiece(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive seeds that were run on one tree of the sources, and what came of them: a row of a record."""

    tree: str
    first: int
    seeds: int
    commits: int
    broken: int

    @property
    def end(self) -> int:
        """The first seed behind these."""
        return self.first + self.seeds

    def with_next(self, piece: "SeedPiece") -> "SeedPiece":
        """This piece and the one that goes on from it, as one."""
        seeds, commits, broken = self.seeds + piece.seeds, self.commits + piece.commits, self.broken + piece.broken
        return SeedPiece(self.tree, self.first, seeds, commits, broken)


PIECES_HEAD: Final = ("tree", "first seed", "seeds", "commits", "seeds that broke an invariant")


def pieces_of(record: ProofRecord | None) -> Sequence[SeedPiece]:
    """The pieces that a record has as rows; none if it is of another kind, or not there."""
    if record is None or record.head != PIECES_HEAD:
        return []
    return [msgspec.convert(row, SeedPiece) for row in record.table]


def distinct_seeds(pieces: Iterable[SeedPiece]) -> int:
    """How many seeds these are: one that was run on several trees is one seed."""
    total = end = 0
    for piece in sorted(pieces, key=lambda each: each.first):
        total += max(0, piece.end - max(piece.first, end))
        end = max(end, piece.end)
    return total


def joined(pieces: Sequence[SeedPiece], new: SeedPiece) -> Sequence[SeedPiece]:
    """The pieces with a new one, made longer where it goes on from one of the same tree.

    Raises `InputError` if some of its seeds were run on that tree already: each counts once.
    """
    same = [piece for piece in pieces if piece.tree == new.tree]
    if any(piece.first < new.end and new.first < piece.end for piece in same):
        raise InputError("seeds that were run on this tree already do not count again", first=new.first, end=new.end)
    begun = next((piece for piece in same if piece.end == new.first), None)
    if begun is None:
        return [*pieces, new]
    return [begun.with_next(new) if piece is begun else piece for piece in pieces]


def _shown(cell: Cell) -> str:
    return cell if isinstance(cell, str) else f"{cell:,}"


def current_commit() -> str:
    """The commit of the sources in the current directory; "?" outside of a repository."""
    asked = subprocess.run(("git", "rev-parse", "--short", "HEAD"), capture_output=True, text=True, check=False)
    return asked.stdout.strip() or "?"
