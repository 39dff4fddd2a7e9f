"""An installed release where nothing else is installed: the README's function without Spark, and the commands.

    python benchmarks/smoke.py              the package alone
    python benchmarks/smoke.py --columns    with the extra `columns`, also what reads the state as columns

It is a script of its own, away from the repository: what it imports is what was installed.
"""

import argparse
import ast
import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import statebackend as sb

ROOT: Final = Path(__file__).parents[1]
BATCHES: Final = 2
ROWS: Final = [{"user": f"user-{number % 7}"} for number in range(1000)]


class Frame:
    """A frame as far as the README's function needs one, without pyarrow."""

    def toArrow(self) -> "Frame":  # noqa: N802  # Spark's name
        """The rows."""
        return self

    def to_pylist(self) -> Sequence[Mapping[str, str]]:
        """The rows, as dictionaries."""
        return ROWS


def program() -> dict[str, Any]:
    """What the README's program has before it asks for Spark: its settings and its function."""
    code = (ROOT / "README.md").read_text(encoding="utf-8").split("```python\n", 1)[1].split("```", 1)[0]
    tree = ast.parse(code)
    end = next(at for at, each in enumerate(tree.body) if ast.unparse(each).startswith("spark ="))
    tree.body = [each for each in tree.body[:end] if "pyspark" not in ast.unparse(each)]
    names: dict[str, Any] = {}
    exec(compile(tree, "README.md", "exec"), names)  # noqa: S102  # ours
    return names


async def run(names: Mapping[str, Any]) -> None:
    """Each batch in a process of its own, as far as the state is concerned: opened, changed, committed, closed."""
    for batch in range(BATCHES):
        async with sb.open_backend(names["settings"]) as backend:
            names["count"](Frame(), batch, backend)
            await backend.checkpoint(backend.next_checkpoint_id)


def command(settings: sb.Settings, *arguments: str) -> str:
    """What a command prints. Raises `CalledProcessError`."""
    place = ("--job", settings.job, "--primary", settings.primary)
    words = [str(Path(sys.executable).with_name("statebackend")), *arguments, *place]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def main() -> None:
    """Raise at the first thing that is wrong."""
    options = argparse.ArgumentParser()
    options.add_argument("--columns", action="store_true")
    given = options.parse_args()
    assert not Path(sb.__file__).is_relative_to(ROOT / "statebackend"), "the repository was imported"
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        names = program()
        settings: sb.Settings = names["settings"]
        asyncio.run(run(names))
        lines = command(settings, "dump", "--state", "clicks").splitlines()
        assert len(lines) == 7, lines
        assert "286" in command(settings, "get", "clicks", "user-0")
        for name in ("inspect", "report", "verify", "sweep"):
            command(settings, name)
        if given.columns:
            assert len(command(settings, "scan", "clicks").splitlines()) == 7
            assert sum(sb.read_state(settings, "clicks").read_all()["value"].to_pylist()) == BATCHES * len(ROWS)
    print(f"statebackend {sb.__version__} on Python {sys.version.split()[0]}: ok")


if __name__ == "__main__":
    main()
