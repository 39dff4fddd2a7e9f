"""Mutants for edits of stopped jobs: seeds, clones, transformations, erasures."""

from collections.abc import Sequence
from typing import Final

from tests.mutants.planting import Mutant

OF_EDITS: Final[Sequence[Mutant]] = (
    Mutant(
        "a job that has a state is seeded",
        "statebackend._upkeep.seeding.seed",
        "if position.newest is not None or position.base is not None:",
        "if False:",
        "assert_a_seed_is_the_first_commit",
        hunter="edits",
    ),
    Mutant(
        "of a key that comes twice the first row always counts",
        "statebackend._upkeep.seeding.duplicates",
        'is_kept[before if duplicates == "last" else place] = False',
        "is_kept[place] = False",
        "assert_has_just_what_was_done_to_it",
        hunter="edits",
    ),
    Mutant(
        "a seed writes its newest run alone",
        "statebackend._upkeep.seeding.sorted_runs",
        "found = rows_of(runs, window)",
        "found = rows_of(runs[-1:], window)",
        "assert_has_just_what_was_done_to_it",
        hunter="edits",
    ),
    Mutant(
        "a key that comes twice is looked for in one run",
        "statebackend._upkeep.seeding.sorted_runs",
        "if may_repeat([run.hashes_in(place) for run in runs]):",
        "if any(may_repeat([run.hashes_in(place)]) for run in runs):",
        "assert_has_just_what_was_done_to_it",
        hunter="edits",
    ),
    Mutant(
        "a clone points at the names that its source has",
        "statebackend._upkeep.offline.copied_objects",
        "return msgspec.structs.replace(handle, key=names.get(handle.key, handle.key))",
        "return handle",
        "assert_is_stored",
        hunter="edits",
    ),
    Mutant(
        "a clone leaves its savepoint in the source",
        "statebackend._upkeep.offline.cloned_checkpoint",
        "if self._name == self._own_name:",
        "if False:",
        "assert_nothing_keeps_the_source",
        hunter="edits",
    ),
    Mutant(
        "a change set that was written again is taken for the old one",
        "statebackend._upkeep.offline.written_again",
        "changelog = (handles.get(each, each) for each in part.changelog)",
        "changelog = part.changelog",
        "assert_has_just_what_was_done_to_it",
        hunter="edits",
    ),
    Mutant(
        "a base that has an erased key stays",
        "statebackend._upkeep.offline.written_again",
        "if base.segment.key not in self._keys:",
        "if True:",
        "assert_has_just_what_was_done_to_it",
        hunter="edits",
    ),
    Mutant(
        "of two keys that become one the last stays",
        "statebackend._upkeep.offline.transformed_state",
        "            self._collided(name, key)\n            return\n",
        "            pass\n",
        "assert_no_two_became_one",
        hunter="edits",
    ),
    Mutant(
        "what a transformation has made is forgotten",
        "statebackend._upkeep.offline.transformed_state",
        "            self._states.take_over(each)",
        "            pass",
        "assert_has_just_what_was_done_to_it",
        hunter="edits",
    ),
)
