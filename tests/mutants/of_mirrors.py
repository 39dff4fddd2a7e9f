"""Mutants of mirrors for the simulation, and which of its invariants is to notice each."""

from collections.abc import Sequence
from typing import Final

from tests.mutants.planting import Mutant

OF_MIRRORS: Final[Sequence[Mutant]] = (
    Mutant(
        "a log keeps what abandoned commits have changed",
        "statebackend._mirroring.rows",
        'if plan.kind == "undo":',
        "if False:",
        "judge_step",
        tries=400,
    ),
    Mutant(
        "two mirrors take the same number for different steps",
        "statebackend._log.mirror_steps",
        "await self._store.put_if_absent(self._key(step.number), [msgspec.json.encode(step)])",
        "await self._store.put(self._key(step.number), [msgspec.json.encode(step)])",
        "judge_step",
        tries=400,
    ),
    Mutant(
        "a mirror that was killed in a step goes on behind it",
        "statebackend._mirroring.mirroring",
        "elif newest.done or found.number == newest.number:",
        "elif newest:",
        "judge_step",
        tries=400,
    ),
    Mutant(
        "a mirror is content with the commit before the newest",
        "statebackend._mirroring.planning",
        "if (newest.sequence, newest.stamp) == (at.sequence, at.stamp):",
        "if newest.sequence <= at.sequence + 1:",
        "assert_newest_of_its_time",
        tries=200,
    ),
    Mutant(
        "a step that was not written starts the mirror anew",
        "statebackend._mirroring.agreement",
        "return found.number == step.number - 1",
        "return False",
        "judge_anew",
        tries=400,
    ),
    Mutant(
        "a mirror does not know its own job behind a rollback",
        "statebackend._mirroring.planning",
        "is_ours = entry.stamp == at.stamp",
        "is_ours = entry.stamp != at.stamp",
        "judge_refused",
        tries=400,
    ),
    Mutant(
        "a mirror takes the change sets of a rewritten commit for all that it changed",
        "statebackend._mirroring.planning",
        "if isinstance(added, str):\n            return whole(newest, added)",
        "if isinstance(added, str):\n            added = 0",
        "assert_table_is_the_state",
        hunter="edits",
    ),
)
