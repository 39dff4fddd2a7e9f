"""All benchmarks: about how long each takes, what it needs, and what a quick run of it leaves out."""

import ast
import importlib.util
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final


@dataclass(frozen=True)
class Benchmark:
    """A module or package of `benchmarks`. `quick` are the parts that a quick run takes, with their sizes."""

    name: str
    minutes: float
    quick_s: float
    """About how long a quick run takes on two quiet cores."""
    quick: Sequence[tuple[str, Mapping[str, int]]]
    extras: bool = False
    """It needs extras, Java, a server or much time, so it runs only if it is named."""
    needs: Sequence[str] = ()
    """Packages, or Java, without which nothing of it can run."""

    @property
    def about(self) -> str:
        """The first sentence of its docstring."""
        return " ".join(docstring_of(f"benchmarks.{self.name}").partition("\n\n")[0].split())

    def seconds(self, *, quick: bool) -> float:
        """About how long it takes."""
        return self.quick_s if quick else self.minutes * 60

    @property
    def missing(self) -> Sequence[str]:
        """What it needs and this machine or environment does not have."""
        return [need for need in self.needs if not _has(need)]


JAVA: Final = "Java"
CATALOGUE: Final[Mapping[str, Benchmark]] = {
    each.name: each
    for each in (
        Benchmark(
            "changelog",
            4,
            15,
            [
                ("changelog.writing", {"changes": 200_000, "rounds": 3}),
                ("changelog.copies", {}),
                ("changelog.batching", {"persists": 50}),
            ],
        ),
        Benchmark(
            "checkpoint",
            8,
            25,
            [("checkpoint.disk", {"keys": 100_000, "rows": 10_000, "checkpoints": 40, "rounds": 2})],
        ),
        Benchmark(
            "recovery",
            4,
            20,
            [("recovery", {"keys": 100_000, "rows": 10_000, "seconds": 10, "pause_ms": 0, "rounds": 2})],
        ),
        Benchmark("across", 4, 15, [("across", {"keys": 20_000, "rounds": 3})]),
        Benchmark(
            "size",
            10,
            30,
            [
                ("size", {"keys": 100_000, "batches": 5, "rounds": 1}),
                ("size.largest", {"keys": 200_000, "batches": 5, "rounds": 1}),
            ],
            extras=True,
        ),
        Benchmark("empty_host", 15, 30, [("empty_host", {"keys": 200_000, "rounds": 1})], extras=True),
        Benchmark("processing", 1, 6, [("processing", {"batches": 5, "rounds": 3})]),
        Benchmark("calls", 1, 8, [("calls", {"keys": 1_000, "rows": 10_000, "rounds": 3})]),
        Benchmark("owners", 1, 12, [("owners", {"owners": 64, "checkpoints": 6, "rounds": 2})]),
        Benchmark(
            "following",
            12,
            60,
            [
                ("following.reads", {"keys": 50_000, "rounds": 2}),
                ("following.commits", {"keys": 100_000, "changes": 5_000, "commits": 5}),
                ("following.holding", {"keys": 50_000, "changes": 10_000}),
                ("following.promotion", {"keys": 50_000, "rounds": 2}),
                ("following.serving", {"seconds": 10}),
            ],
        ),
        Benchmark("seeding", 6, 20, [("seeding", {"keys": 300_000, "rounds": 2})]),
        Benchmark("state", 5, 5, [("state.keys", {"keys": 100_000, "rounds": 3})]),
        Benchmark("restore", 4, 20, [("restore.decoding", {"keys": 200_000, "rounds": 3})]),
        Benchmark("rocksdb_bases", 1, 25, [("rocksdb_bases", {})]),
        Benchmark("values", 0.5, 3, [("values", {})]),
        Benchmark("s3", 2, 50, [("s3", {"rounds": 1})]),
        Benchmark(
            "mirrors",
            10,
            40,
            [("mirrors", {"keys": 50_000, "changes": 5_000, "rounds": 2})],
            extras=True,
            needs=("pyarrow",),
        ),
        Benchmark("upserts", 8, 20, [("upserts", {"keys": 100_000, "rounds": 2})], extras=True),
        Benchmark("kills", 25, 60, [("kills", {"kills": 3})], extras=True, needs=("pyspark", JAVA, "deltalake")),
        Benchmark(
            "spark",
            30,
            180,
            [
                ("spark.large", {"keys": 100_000, "batches": 6, "rounds": 1}),
                ("spark.over_runs", {"keys": 100_000, "batches": 6, "rounds": 1}),
                ("spark.parallel", {"keys": 100_000, "batches": 6, "rounds": 1}),
                ("spark.importing", {"keys": 20_000, "rounds": 1}),
                ("spark.python_apis", {"keys": 2_000, "rows": 2_000, "batches": 4, "rounds": 1}),
            ],
            extras=True,
            needs=("pyspark", JAVA),
        ),
    )
}


def docstring_of(module: str) -> str:
    """Its docstring, read without importing a module that may need an extra. Raises `KeyError` if there is none."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise KeyError(module)
    return ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""


def benchmark_of(name: str) -> Benchmark:
    """The benchmark of that name, or that it is a part of."""
    return CATALOGUE[name.partition(".")[0]]


def is_part(name: str) -> bool:
    """Whether it names a benchmark, or a part of one, such as state.access."""
    return name.partition(".")[0] in CATALOGUE and importlib.util.find_spec(f"benchmarks.{name}") is not None


def steps_of(name: str, *, quick: bool) -> Sequence[tuple[str, Mapping[str, Any]]]:
    """The modules that a run of it takes, and the sizes given to each."""
    quickly = [step for step in benchmark_of(name).quick if step[0] == name or name in CATALOGUE]
    return quickly if quick and quickly else [(name, {})]


def _has(need: str) -> bool:
    if need != JAVA:
        return importlib.util.find_spec(need) is not None
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=f"{home}/bin" if home else None) is not None
