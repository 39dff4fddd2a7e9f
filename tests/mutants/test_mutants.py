"""The mutants fit the sources, each named invariant has one, and one is planted: `nox -s mutants` plants all."""

import os
import subprocess
import sys

from tests.mutants.library import MUTANTS, WITHOUT_MUTANT, without_mutant
from tests.mutants.planting import ROOT, invariants

QUICK = "the history ends with the newest commit"


def test_every_mutant_fits_the_source_that_it_breaks() -> None:
    """It stands there once; after a change of that line the mutant has to be written anew."""
    stale = [
        mutant.name
        for mutant in MUTANTS
        if (ROOT / f"{mutant.module.replace('.', '/')}.py").read_text(encoding="utf-8").count(mutant.old) != 1
    ]
    assert stale == []


def test_every_named_invariant_has_a_mutant() -> None:
    """Or a reason why it has none, which goes when it gets one."""
    known = invariants()
    assert without_mutant() == {}
    assert {mutant.invariant for mutant in MUTANTS} <= known.keys()
    assert WITHOUT_MUTANT.keys() <= known.keys()
    assert not WITHOUT_MUTANT.keys() & {mutant.invariant for mutant in MUTANTS}


def test_a_mutant_is_noticed_by_its_invariant() -> None:
    """In a process of its own, since this one has the library already: that costs the time of its imports."""
    command = (sys.executable, "-m", "tests.mutants", "--jobs", "1", "--only", QUICK)
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert found.returncode == 0, found.stdout + found.stderr
    assert "assert_same_history" in found.stdout
