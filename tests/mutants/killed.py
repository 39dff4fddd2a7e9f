"""Imported first by processes that are to be killed: plants the mutant whose name is in the environment."""

import os

from tests.mutants.library import MUTANTS
from tests.mutants.planting import plant

plant(next(mutant for mutant in MUTANTS if mutant.name == os.environ[__name__]))
