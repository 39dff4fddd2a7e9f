"""All benchmarks: about how long each takes, and what a quick run of it leaves out."""

import ast
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final


@dataclass(frozen=True)
class Benchmark:
    """A module or package of `benchmarks`. `quick` are the parts that a quick run takes, with their sizes."""

    name: str
    minutes: float
    quick: Sequence[tuple[str, Mapping[str, int]]]
    extras: bool = False
    """It needs extras, Java, a server or much time, so it runs only if it is named."""

    @property
    def about(self) -> str:
        """The first sentence of its docstring."""
        return " ".join(docstring_of(f"benchmarks.{self.name}").partition("\n\n")[0].split())


CATALOGUE: Final[Mapping[str, Benchmark]] = {
    each.name: each
    for each in (
        Benchmark(
            "changelog",
            1,
            [
                ("changelog.writing", {"changes": 200_000, "rounds": 3}),
                ("changelog.copies", {}),
                ("changelog.batching", {}),
            ],
        ),
        Benchmark(
            "checkpoint", 8, [("checkpoint.disk", {"keys": 100_000, "rows": 10_000, "checkpoints": 40, "rounds": 2})]
        ),
        Benchmark(
            "recovery", 4, [("recovery", {"keys": 100_000, "rows": 10_000, "seconds": 10, "pause_ms": 0, "rounds": 2})]
        ),
        Benchmark("processing", 1, [("processing", {"batches": 5, "rounds": 3})]),
        Benchmark("calls", 1, [("calls", {"keys": 1_000, "rows": 10_000, "rounds": 3})]),
        Benchmark("owners", 1, [("owners", {"owners": 64, "checkpoints": 6, "rounds": 2})]),
        Benchmark("state", 5, [("state.keys", {"keys": 100_000, "rounds": 3})]),
        Benchmark("restore", 4, [("restore.decoding", {"keys": 200_000, "rounds": 3})]),
        Benchmark("rocksdb_bases", 1, [("rocksdb_bases", {})]),
        Benchmark("values", 0.5, [("values", {})]),
        Benchmark("s3", 2, [("s3", {})]),
        Benchmark("upserts", 8, [("upserts", {"keys": 100_000, "rounds": 2})], extras=True),
        Benchmark("kills", 15, [("kills", {"kills": 3})], extras=True),
        Benchmark(
            "spark",
            30,
            [
                ("spark.large", {"keys": 100_000, "batches": 6, "rounds": 1}),
                ("spark.parallel", {"keys": 100_000, "batches": 6, "rounds": 1}),
            ],
            extras=True,
        ),
    )
}


def docstring_of(module: str) -> str:
    """Its docstring, read without importing a module that may need an extra. Raises `KeyError` if there is none."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise KeyError(module)
    return ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""


def is_part(name: str) -> bool:
    """Whether it names a benchmark, or a part of one, such as state.access."""
    return name.partition(".")[0] in CATALOGUE and importlib.util.find_spec(f"benchmarks.{name}") is not None


def steps_of(name: str, *, quick: bool) -> Sequence[tuple[str, Mapping[str, Any]]]:
    """The modules that a run of it takes, and the sizes given to each."""
    return CATALOGUE[name].quick if quick and name in CATALOGUE else [(name, {})]
