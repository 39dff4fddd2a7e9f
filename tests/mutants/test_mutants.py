"""The mutants fit the sources, each named invariant has one, and one is planted: `nox -s mutants` plants all."""

import os
import subprocess
import sys

from tests.mutants.library import MUTANTS, without_mutant
from tests.mutants.of_programs import TAKEN_BACK
from tests.mutants.planting import ROOT, invariants

QUICK = ("the history ends with the newest commit", "pop returns the default")


def test_every_mutant_fits_the_source_that_it_breaks() -> None:
    """It stands there once; after a change of that line the mutant has to be written anew."""
    stale = [
        mutant.name
        for mutant in (*MUTANTS, *TAKEN_BACK)
        if (ROOT / f"{mutant.module.replace('.', '/')}.py").read_text(encoding="utf-8").count(mutant.old) != 1
    ]
    assert stale == []


def test_every_named_invariant_has_a_mutant() -> None:
    """Those of the simulation, and those of the models; and each mutant names an invariant that there is."""
    assert without_mutant() == {}
    assert {mutant.invariant for mutant in MUTANTS} <= invariants().keys()


def test_mutants_are_noticed_by_their_invariants() -> None:
    """In processes of their own, since this one has the library already: that costs the time of its imports."""
    only = [word for name in QUICK for word in ("--only", name)]
    command = (sys.executable, "-m", "tests.mutants", "--jobs", "1", *only)
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert found.returncode == 0, found.stdout + found.stderr
    assert "2 of 2 mutants were noticed, by 2 invariants" in found.stdout
