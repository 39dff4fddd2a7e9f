"""Many programs: `python -m tests.programs --seeds 1000`, or `nox -s programs`.

At the end it says which pairs of traits have met. With `--record FILE` runs add up: without `--first` one goes on
behind the last seed that is recorded there. `--show SEED` shrinks one that fails, and prints it as code.
"""

import argparse
import logging
import os
import re
import shutil
import tempfile
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec

from tests.programs.drawing import draw
from tests.programs.pairs import Pairs
from tests.programs.program import Batch, Program
from tests.programs.real_spark import OnSpark
from tests.programs.running import run
from tests.programs.shrinking import shrunk
from tests.proof.record import (
    PIECES_HEAD,
    ProofRecord,
    SeedPiece,
    current_commit,
    distinct_seeds,
    joined,
    pieces_of,
    read_record,
    record_of,
    write_record,
)
from tests.spark.conftest import build_session

STEP = 25
"""Seeds between two lines of progress."""


class Found(msgspec.Struct, frozen=True):
    """A seed that fails: how, in a form that is the same for the same cause, and what the error says."""

    seed: int
    cause: str
    text: str


def failure_of(program: Program) -> Exception | None:
    """What a program raises, if anything."""
    try:
        run(program)
    except Exception as error:  # noqa: BLE001  # whatever it is, it is what was looked for
        return error
    return None


def cause_of(error: Exception) -> str:
    """The same for failures that have the same cause, as far as can be told."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    first_line = next(iter(str(error).splitlines()), "")
    return (
        f"{type(error).__name__} in {Path(last.filename).name}:{last.name}: {re.sub(r'[0-9]+|[(].*', '', first_line)}"
    )


def run_seeds(first: int, count: int) -> tuple[int, Sequence[Found], Pairs]:
    """Run these seeds; return how many batches they had, those that fail, and which pairs have met."""
    logging.disable(logging.CRITICAL)  # what goes wrong goes wrong on purpose
    batches, broken, pairs = 0, list[Found](), Pairs()
    for seed in range(first, first + count):
        program = draw(seed)
        pairs.note(program)
        batches += _batches(program)
        if (error := failure_of(program)) is not None:
            broken.append(Found(seed, cause_of(error), str(error)))
    return batches, broken, pairs


def _batches(program: Program) -> int:
    return sum(isinstance(step, Batch) for step in program.steps)


def show(seed: int) -> None:
    """Shrink a seed that fails; print it and its error."""
    program = draw(seed)
    if (error := failure_of(program)) is None:
        print(f"seed {seed} is sound")
        return
    cause = cause_of(error)
    program = shrunk(program, lambda each: (found := failure_of(each)) is not None and cause_of(found) == cause)
    print(program.code())
    print(*traceback.format_exception(failure_of(program) or error))


def on_spark(asked: SeedPiece, record: Path | None) -> None:
    """Run these seeds on a real session. Exit status 1 if one is broken."""
    broken, begun_s, before = list[Found](), time.monotonic(), recorded(record)
    pairs, run_by_now = Pairs(), SeedPiece(asked.tree, asked.first, 0, 0, 0)
    with tempfile.TemporaryDirectory(prefix="programs-") as folder:
        spark = build_session(Path(folder, "warehouse"))
        for seed in range(asked.first, asked.end):
            program, sound = draw(seed), len(broken)
            try:
                OnSpark(program, Path(folder, str(seed)), spark).run()
            except Exception as error:  # noqa: BLE001  # as in `failure_of`
                broken.append(Found(seed, cause_of(error), str(error)))
                print(f"seed {seed}: {cause_of(error)}\n    {str(error)[:400]}")
            shutil.rmtree(Path(folder, str(seed)), ignore_errors=True)
            pairs.note(program)
            run_by_now = run_by_now.with_next(SeedPiece(asked.tree, seed, 1, _batches(program), len(broken) - sound))
            print(f"{run_by_now.seeds:>7,} of {asked.seeds:,} seeds on Spark, {len(broken)} broken", flush=True)
            if record is not None:
                write_record(record, in_all(before, run_by_now, pairs, time.monotonic() - begun_s, option="--spark"))
        spark.stop()
    print(*by_cause(broken), f"{time.monotonic() - begun_s:.0f} s", sep="\n")
    raise SystemExit(1 if broken else 0)


def main() -> None:
    """Run the seeds. Exit status 1 if one is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--show", type=int, metavar="SEED", help="shrink a seed that fails, and stop")
    parser.add_argument("--spark", type=int, metavar="N", help="run so many on a real session of Spark, and stop")
    parser.add_argument("--record", type=Path, metavar="FILE", help="add what came of it to what is there")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if arguments.show is not None:
        show(arguments.show)
        return
    before = recorded(arguments.record)
    first = max((piece.end for piece in pieces_of(before)), default=0) if arguments.first is None else arguments.first
    asked = SeedPiece(current_commit(), first, arguments.spark or arguments.seeds, 0, 0)
    joined(pieces_of(before), asked)  # refuses what was run, before it is run
    if arguments.spark is not None:
        on_spark(asked, arguments.record)
        return
    begun_s, broken, pairs, run_by_now = time.monotonic(), list[Found](), Pairs(), SeedPiece(asked.tree, first, 0, 0, 0)
    starts = range(asked.first, asked.end, STEP)
    counts = [min(STEP, asked.end - start) for start in starts]
    with ProcessPoolExecutor(arguments.jobs) as pool:
        steps = pool.map(run_seeds, starts, counts)
        for start, count, (batches, found, met) in zip(starts, counts, steps, strict=True):
            broken += found
            pairs.add(met)
            run_by_now = run_by_now.with_next(SeedPiece(asked.tree, start, count, batches, len(found)))
            for each in found:
                print(f"seed {each.seed}: {each.cause}\n    {each.text[:400]}")
            print(f"{run_by_now.seeds:>7,} of {asked.seeds:,} seeds, {len(broken)} broken", flush=True)
            if arguments.record is not None:  # now: a run that is ended early has not been in vain
                write_record(arguments.record, in_all(before, run_by_now, pairs, time.monotonic() - begun_s))
    print(*pairs.lines(), *by_cause(broken), f"{time.monotonic() - begun_s:.0f} s", sep="\n")
    raise SystemExit(1 if broken else 0)


def by_cause(broken: Sequence[Found]) -> Sequence[str]:
    causes: dict[str, list[int]] = {}
    for each in broken:
        causes.setdefault(each.cause, []).append(each.seed)
    ordered = sorted(causes.items(), key=lambda pair: -len(pair[1]))
    return [f"{len(seeds):>5} {cause}: {', '.join(map(str, seeds[:8]))}" for cause, seeds in ordered]


def recorded(path: Path | None) -> ProofRecord | None:
    """The record that is there, if one of seeds is."""
    found = read_record(path) if path is not None and path.exists() else None
    return found if found is not None and found.head == PIECES_HEAD else None


def in_all(
    before: ProofRecord | None, run: SeedPiece, pairs: Pairs, seconds: float, option: str = "--seeds"
) -> ProofRecord:
    """The record of this run and of those before it. Its command, day, time and pairs are those of this run."""
    pieces = joined(pieces_of(before), run)
    seeds, trees = sum(piece.seeds for piece in pieces), len({piece.tree for piece in pieces})
    return record_of(
        f"nox -s programs -- --first {run.first} {option} {run.seeds}",
        seconds=seconds,
        broken=sum(piece.broken for piece in pieces),
        head=PIECES_HEAD,
        table=[msgspec.structs.astuple(piece) for piece in pieces],
        notes=(
            f"In all {seeds:,} runs of {distinct_seeds(pieces):,} different seeds, on {trees:,} trees of the sources.",
            f"In the last piece, whose command, day and time these are, {next(iter(pairs.lines()))}.",
        ),
    )


if __name__ == "__main__":
    main()
