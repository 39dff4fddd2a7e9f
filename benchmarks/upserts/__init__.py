"""A batch of 33,000 distinct keys without Spark, committed with its id: ours, SQLite, Postgres, and delta-rs' MERGE.

    nox -s bench -- upserts --sizes keys=1000,rounds=2     in seconds

Envelope. A third to a hundredth of the keys change, of 10,000 to 10,000,000. Ours looks up 33,000 places, adds, and
appends what changed to a log: the time of a cache miss or two for each key, 2 to 5 ms, as much to encode, and two
`fsync`s: 9, 13, 16 and 18 ms for 100,000, 1,000,000, 5,000,000 and 10,000,000 keys, and the same 2 MB. As Python
values it is ten times as much work, two thirds of it for objects. A B-tree writes each page that has one of the keys,
so what SQLite writes grows with the keys until each has a page of its own: 32 to 100 ms. Postgres writes new versions
of rows and a log of them: 60 to 150 ms. MERGE rewrites the files that have one of the keys, which is all: 50 to 500 ms,
and unsynced.

Where a value state's time goes, seen in CPU, of 33,000 of 100,000 keys: 31 ms of 85 are its two visits to a dictionary
that the processor's caches do not hold, 20 to read and 11 to write; 17 decode, prove and encode; 7 are the caller's
additions, 3 make Python objects of the batch, 17 the checkpoint. SQLite takes 64 for all of it. Nothing of it is a
fixed cost that could go: of 3,300 of 10,000 keys it is 10 ms, of which 5 are the checkpoint; SQLite takes 7.

Expectations are of one run on one machine, in turns. Bytes are what the kernel counts for each process, put-off work
included; ours has two copies of everything, the others have one.
"""

import importlib.util
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.contest import Line, Report, Sample, ratio
from benchmarks.jobs import directory
from benchmarks.servers import ServerError
from benchmarks.totals import Traffic, answer, check
from benchmarks.upserts.contestants import Contestant, numbers_of, open_delta, open_ours, open_sqlite
from benchmarks.upserts.postgres import open_postgres

SIZES: Final = (10_000, 100_000, 1_000_000, 10_000_000)
ROWS: Final = 33_000
AT_ONCE: Final = 5
EXPECTED_MS: Final = {100_000: 9.0, 1_000_000: 13.0, 5_000_000: 16.0, 10_000_000: 18.0}
OURS: Final = ("heap", "columns")
PEERS: Final[Mapping[str, tuple[str, Callable[[Path], AbstractContextManager[Contestant]]]]] = {
    "SQLite": ("sqlite3", open_sqlite),
    "Postgres": ("psycopg", open_postgres),
    "MERGE": ("deltalake", open_delta),
}


class _Turns:
    """One contestant, the batches that it takes, and what it writes for them."""

    def __init__(self, contestant: Contestant, batches: list[tuple[Any, Any]]) -> None:
        self.contestant, self._batches = contestant, iter(batches)
        self.times_ms: list[float] = []
        self._written = 0

    def turn(self) -> float:
        """The median time of its next batches."""
        found: list[float] = []
        before = self.contestant.written_bytes()
        for _ in range(AT_ONCE):
            batch = next(self._batches)
            begun = time.perf_counter()
            self.contestant.upsert(*batch)
            found.append((time.perf_counter() - begun) * 1000)
        self.contestant.rest()
        self._written += self.contestant.written_bytes() - before
        self.times_ms += found
        return statistics.median(found)

    def megabytes(self) -> float:
        """What a batch made it write, with its share of what was put off."""
        before = self.contestant.written_bytes()
        self.contestant.finish()
        self._written += self.contestant.written_bytes() - before
        return self._written / len(self.times_ms) / 1e6


def run(report: Report, *, keys: int = 0, rounds: int = 4) -> None:
    """Milliseconds and bytes of a batch at each size, or at `keys`. Five minutes."""
    for count in (keys,) if keys else SIZES:
        with directory() as folder:
            _measure(report, folder, count, rounds)


def _measure(report: Report, folder: Path, keys: int, rounds: int) -> None:
    traffic = Traffic(keys)
    batches = [traffic.distinct(number, min(ROWS, keys // 3)) for number in range(rounds * AT_ONCE)]
    with ExitStack() as stack:
        turns: dict[str, _Turns] = {}
        for name, opened in _contestants(report).items():
            (folder / name).mkdir()
            try:
                contestant = stack.enter_context(opened(folder / name))
            except ServerError as error:
                report.skip(f"{name}: {error}")
                continue
            every_key = traffic.every_key()
            contestant.upsert(every_key, numbers_of(every_key))
            contestant.rest()
            contestant.finish()
            turns[name] = _Turns(contestant, [(batch, numbers_of(batch)) for batch in batches])
        samples = report.contest(
            "a batch", "ms", {name: each.turn for name, each in turns.items()}, rounds=rounds, keys=keys
        )
        megabytes = {name: each.megabytes() for name, each in turns.items()}
        expected = answer([traffic.every_key(), *batches])
        report.keep("written for a batch", "MB", {name: Sample([each]) for name, each in megabytes.items()}, keys=keys)
        for name, each in turns.items():
            check(name, each.contestant.table(), expected)
    _report(report, keys, batches[0].num_rows, samples, megabytes)


def _contestants(report: Report) -> Mapping[str, Callable[[Path], AbstractContextManager[Contestant]]]:
    """Those whose packages are here."""
    found: dict[str, Callable[[Path], AbstractContextManager[Contestant]]] = {}
    found |= {kind: partial(open_ours, kind=kind) for kind in OURS}
    for name, (package, opened) in PEERS.items():
        if importlib.util.find_spec(package) is None:
            report.skip(f"{name} needs {package}, of the extra `upserts`")
        else:
            found[name] = opened
    return found


def _report(
    report: Report, keys: int, rows: int, samples: Mapping[str, Sample], megabytes: Mapping[str, float]
) -> None:
    detail = "; ".join(f"{name} {sample} ms and {megabytes[name]:.2f} MB" for name, sample in samples.items())
    if keys in EXPECTED_MS:
        limit = EXPECTED_MS[keys]
        report.add(
            Line(
                f"a batch of {rows:,} distinct of {keys:,} keys without Spark, columns",
                f"at most {limit:g} ms",
                samples["columns"].median,
                "ms",
                limit,
            )
        )
    peer = min((name for name in PEERS if name in samples), key=lambda name: samples[name].median)
    for name in OURS:
        report.add(
            Line(
                f"a batch of {rows:,} distinct of {keys:,} keys, {name} over the fastest of the others, {peer}",
                "at most 1x",
                ratio(samples[name], samples[peer]).median,
                "x",
                1.0,
                detail=detail if name == OURS[-1] else "",
            )
        )
