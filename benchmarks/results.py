"""What a run of a benchmark leaves behind: a JSON file with every round of it, and how two of them compare.

A ratio of contestants that took turns in one run can be compared with that of another run, even of another machine; a
time cannot. So a comparison has a verdict for ratios only, and shows the rest.
"""

import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.contest import Report

DIRECTORY: Final = Path(__file__).parent / "results"
QUICK: Final = Path(__file__).parents[1] / "build" / "benchmarks"
"""Results of quick runs, which are none for the performance page."""
PACKAGES: Final = (
    "aiobotocore", "aiofiles", "anyio", "cramjam", "deltalake", "msgspec", "numpy", "pandas", "psycopg", "pyarrow",
    "pyspark", "rocksdict",
)  # fmt: skip
RATIOS: Final = frozenset({"x", ""})
"""Units of a figure that does not depend on the machine's speed."""


class LineRecord(msgspec.Struct, frozen=True):
    """An expectation, and what was measured."""

    claim: str
    expected: str
    measured: float
    unit: str
    limit: float
    at_least: bool
    verdict: str
    detail: str = ""


class MeasuredRecord(msgspec.Struct, frozen=True):
    """All rounds of one contest."""

    what: str
    unit: str
    at: dict[str, bool | float | str]
    rounds: dict[str, list[float]]


class Result(msgspec.Struct, frozen=True):
    """A run of one benchmark."""

    benchmark: str
    begun: str
    """UTC, to the second."""
    seconds: float
    quick: bool
    sizes: dict[str, float]
    commit: str
    """The commit of this project's that ran, and "changed" behind it if files differed from it."""
    machine: dict[str, str]
    versions: dict[str, str]
    lines: list[LineRecord]
    measured: list[MeasuredRecord]


class Change(msgspec.Struct, frozen=True):
    """One claim in two results. `factor` is above 1 if the newer run did worse."""

    claim: str
    unit: str
    old: float
    new: float
    factor: float

    @property
    def is_comparable(self) -> bool:
        """Whether it is a ratio of contestants, not a time or an amount of this machine's."""
        return self.unit in RATIOS and min(self.old, self.new) > 0


def result_of(report: Report, *, begun: str, seconds: float, quick: bool, sizes: Mapping[str, float]) -> Result:
    """The record of a run that has just ended, here."""
    return Result(
        benchmark=report.title,
        begun=begun,
        seconds=round(seconds, 1),
        quick=quick,
        sizes=dict(sizes),
        commit=_commit(),
        machine=machine(),
        versions=versions(),
        lines=[LineRecord(**vars(line), verdict=line.verdict) for line in report.lines],
        measured=[
            MeasuredRecord(
                each.what,
                each.unit,
                dict(each.at),
                {name: [float(figure) for figure in sample.figures] for name, sample in each.samples.items()},
            )
            for each in report.measured
        ],
    )


def save(result: Result, directory: Path) -> Path:
    """Write it to `directory`, over the last one of the same benchmark. Returns the file."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{result.benchmark}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    return path


def load(path: Path) -> list[Result]:
    """The results in a file, or in all files of a directory. Raises `msgspec.MsgspecError` if one is no result."""
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    return [msgspec.json.decode(file.read_bytes(), type=Result) for file in files]


def compare(old: Sequence[Result], new: Sequence[Result]) -> Iterator[Change]:
    """Every claim that both have, in the newer order."""
    before = {(result.benchmark, line.claim): line for result in old for line in result.lines}
    for result in new:
        for line in result.lines:
            known = before.get((result.benchmark, line.claim))
            if known is not None:
                yield Change(line.claim, line.unit, known.measured, line.measured, _factor(known, line))


def machine() -> dict[str, str]:
    """The processor, cores, memory and system that this runs on."""
    cpu = Path("/proc/cpuinfo")
    models = [line for line in cpu.read_text(encoding="utf-8").splitlines() if line.startswith("model name")]
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": models[0].partition(":")[2].strip() if models else platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{gib:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
    }


def versions() -> dict[str, str]:
    """Python, and those packages of ours and of the contestants that are here."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> str:
    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        return subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True).stdout

    try:
        return git("rev-parse", "--short", "HEAD").strip() + (
            ", changed" if git("status", "--porcelain", "--untracked-files=no", ":!*.json").strip() else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"  # not a checkout


def _factor(old: LineRecord, new: LineRecord) -> float:
    over, under = (old, new) if new.at_least else (new, old)
    return over.measured / under.measured if under.measured else float("inf")
