"""Each job has just what was done to it: `EDITS_SEED=17` replays a run, `EDITS_SEEDS=5000` looks further."""

import os

import pytest

from tests.simulation.edits import simulate_edits

SEEDS = [int(one)] if (one := os.environ.get("EDITS_SEED")) else range(int(os.environ.get("EDITS_SEEDS", "20")))


@pytest.mark.parametrize("seed", SEEDS)
def test_each_job_has_just_what_was_done_to_it(seed: int) -> None:
    """Whatever is killed, and whatever is done to the jobs that it was cloned from, or to its clones."""
    simulate_edits(seed)
