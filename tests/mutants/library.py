"""All mutants: breaks of one line each, who hunts for each of them, and the invariant that is to notice it."""

from collections.abc import Mapping, Sequence
from typing import Final

from tests.mutants.of_edits import OF_EDITS
from tests.mutants.of_mirrors import OF_MIRRORS
from tests.mutants.of_models import OF_MODELS
from tests.mutants.of_runs import OF_RUNS
from tests.mutants.of_simulation import OF_SIMULATION
from tests.mutants.planting import Mutant, invariants

MUTANTS: Final[Sequence[Mutant]] = (*OF_SIMULATION, *OF_MIRRORS, *OF_MODELS, *OF_EDITS, *OF_RUNS)


def without_mutant() -> Mapping[str, str]:
    """The named invariants that no mutant is for, each with the file that has it."""
    covered = {mutant.invariant for mutant in MUTANTS}
    return {name: path for name, path in invariants().items() if name not in covered}
