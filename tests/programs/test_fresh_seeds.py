"""Half of the seeds that are drawn by the commit."""

import pytest

from tests.programs.fresh import run_seeds, share

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.parametrize("seeds", share(0), ids=lambda seeds: f"from-{seeds[0]}")
def test_a_program_does_what_dictionaries_do(seeds: range) -> None:
    """Whatever a user combines, and whatever happens in between."""
    run_seeds(seeds)
