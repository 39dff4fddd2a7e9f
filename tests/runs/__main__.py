"""Flips bits of runs: `python -m tests.runs --flips 10000`, or `nox -s flips`.

Of a base and a layer on a disk, of the answers of a store far away, and of the local copies of a whole job over layers.
Each is an error of ours, or the right rows; a job whose primary is whole has the right rows each time.
"""

import argparse
import logging
import os
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import statebackend as sb
from statebackend._codec.change_sets.parts import encode_parts
from statebackend._runs.run_file import OpenRun, open_run
from statebackend.errors import DataError
from statebackend.ids import Handle
from statebackend.testing import run_virtual
from tests.proof.record import record_of, write_record
from tests.runs.test_damaged_ranges import Answers, opened
from tests.runs.test_damaged_runs import check_rows, segment_of
from tests.runs.test_layers import LayeredJob

Look = Callable[[bytes], str]
"""Reads all of a file that was damaged; says at what it was refused, or that it was right. Raises what is wrong."""


def flipped(data: bytes, chance: Random) -> bytes:
    """The same with one bit of it changed."""
    damaged = bytearray(data)
    damaged[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(damaged)


def look_up(open_: Callable[[], OpenRun], check: Callable[[OpenRun], None]) -> str:
    """Open a run, and read all of it."""
    try:
        run = open_()
    except DataError:
        return "refused at the opening"
    try:
        check(run)
    except DataError:
        return "refused by the page"
    return "right"


def flip_a_file(directory: Path, chance: Random, count: int) -> Counter[str]:
    """A base on a disk."""
    path, handle = segment_of(directory, 300)
    data, copy, found = path.read_bytes(), directory / "copy", Counter[str]()
    for _ in range(count):
        copy.write_bytes(flipped(data, chance))
        found[look_up(partial(open_run, copy, handle), partial(check_rows, count=300))] += 1
    return found


def flip_answers(directory: Path, chance: Random, count: int) -> Counter[str]:
    """A base in a store far away, which has it so each time that it is asked."""
    path, handle = segment_of(directory, 300)
    data, found = path.read_bytes(), Counter[str]()
    for _ in range(count):
        answers = Answers(flipped(data, chance))
        found[look_up(partial(opened, answers, handle), partial(check_rows, count=300))] += 1
    return found


def flip_a_layer(directory: Path, chance: Random, count: int) -> Counter[str]:
    """The layers of a job, whose segments have pages and what is beside them."""
    job = LayeredJob(directory)
    run_virtual(job.with_layers)(3, 1000)
    handles: list[Handle] = [each.segment for each in run_virtual(job.newest)().changelog]
    files = [(handle, (directory / "primary" / "job" / handle.key).read_bytes()) for handle in handles]
    copy, found = directory / "copy", Counter[str]()

    def rows(run: OpenRun) -> list[bytes]:
        found = [*map(run.changes, run.parts), *run.others()]
        return [bytes(encode_parts([each])) for each in found]

    def same(run: OpenRun, whole: list[bytes]) -> None:
        assert rows(run) == whole, "another value"

    for _ in range(count):
        handle, data = chance.choice(files)
        copy.write_bytes(data)
        whole = rows(open_run(copy, handle))
        copy.write_bytes(flipped(data, chance))
        found[look_up(partial(open_run, copy, handle), partial(same, whole=whole))] += 1
    return found


def flip_copies(directory: Path, chance: Random, count: int) -> Counter[str]:
    """The local copies of a job over a base and layers, whose primary is whole: it goes on each time."""
    job = LayeredJob(directory / "job")
    run_virtual(job.with_layers)(3, 300)
    copies = [path for path in (directory / "job" / "local").rglob("segments/*") if path.is_file()]
    whole = {path: path.read_bytes() for path in copies}
    found = Counter[str]()

    @run_virtual
    async def check() -> str:
        async with sb.open_backend(job.settings, read_only=True) as backend:
            assert backend.restored is not None
            job.check(backend)
            return "repaired at the opening" if backend.restored.fallbacks else "right"

    for _ in range(count):
        path = chance.choice(copies)
        path.write_bytes(flipped(whole[path], chance))
        outcome = check()
        found["repaired by the page" if outcome == "right" and not path.exists() else outcome] += 1
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(whole[path])
    return found


FLIPS: Final[Mapping[str, tuple[Callable[[Path, Random, int], Counter[str]], float]]] = {
    "a base on a disk": (flip_a_file, 0.3),
    "a layer on a disk": (flip_a_layer, 0.3),
    "a base far away": (flip_answers, 0.3),
    "local copies of a job over layers": (flip_copies, 0.1),
}
"""What is damaged, and its share of all."""
OUTCOMES: Final = (
    *("refused at the opening", "refused by the page", "repaired at the opening", "repaired by the page"),
    *("right", "wrong"),
)


def run(name: str, seed: int, count: int) -> tuple[str, Counter[str], str]:
    """So many flips, drawn by that seed; and what is wrong, if anything."""
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="flips-") as place:
        try:
            return name, FLIPS[name][0](Path(place), Random(f"{seed} {name}"), count), ""
        except BaseException as error:  # noqa: BLE001  # told by the parent
            return name, Counter(wrong=1), "".join(traceback.format_exception(error))


def main() -> None:
    """Exit status 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.runs", description=__doc__)
    parser.add_argument("--flips", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="the seed of the first of them")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write what came of it there")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    begun = time.monotonic()
    pieces: list[tuple[str, int, int]] = []
    for name, (_, share) in FLIPS.items():
        left = round(arguments.flips * share)
        for seed in range(arguments.first, arguments.first + -(-left // 250)):
            pieces.append((name, seed, min(250, left)))
            left -= 250
    counts = {name: Counter[str]() for name in FLIPS}
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for name, found, wrong in pool.map(run, *zip(*pieces, strict=True)):
            counts[name].update(found)
            print(name, dict(found), wrong, flush=True)
    table: Sequence[Sequence[str | int]] = [
        (name, found.total(), *(found[outcome] for outcome in OUTCOMES)) for name, found in counts.items()
    ]
    record = record_of(
        f"nox -s flips -- --first {arguments.first} --flips {arguments.flips}",
        seconds=time.monotonic() - begun,
        broken=sum(found["wrong"] for found in counts.values()),
        head=("of what", "bits", *OUTCOMES),
        table=table,
    )
    print(*record.lines(), sep="\n")
    if arguments.record is not None:
        write_record(arguments.record, record)
    raise SystemExit(bool(record.broken))


if __name__ == "__main__":
    main()
