"""The seeds that a run of the tests draws: other ones with each commit, so that CI looks further every time.

Two files share them, because the tests of a file stay in one process.
"""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.programs.drawing import FRESH, draw
from tests.programs.running import run
from tests.programs.surroundings import without_worker_threads

SEEDS = int(os.environ.get("PROGRAMS", "300"))
IN_A_TEST = 15


def first_seed() -> int:
    """The first seed of this commit; outside of a repository always the same."""
    command = ("git", "rev-parse", "HEAD")
    asked = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    number = int(asked.stdout[:8], 16) if asked.returncode == 0 else 0
    return (1 + number) * FRESH


def share(number: int, shares: int = 2) -> Sequence[range]:
    """The seeds of one of the files, some for each test."""
    begins = range(number * IN_A_TEST, SEEDS, shares * IN_A_TEST)
    first = first_seed()
    return [range(first + begin, first + begin + IN_A_TEST) for begin in begins]


def run_seeds(seeds: range) -> None:
    """Run them without worker threads, which hunts have. Raises what the first failure raises, and how to shrink it."""
    for seed in seeds:
        try:
            with without_worker_threads():
                run(draw(seed))
        except Exception as error:
            error.add_note(f"shrink it by: python -m tests.programs --show {seed}")
            raise
