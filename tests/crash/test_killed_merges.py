"""Merges of runs that are killed, in short: `python -m tests.crash.merges` does it at every step."""

from pathlib import Path
from random import Random

import pytest

from tests.crash.merges import ALL, MOMENTS, kill_and_check, operations_of, prepared


@pytest.mark.parametrize("name", ALL)
def test_a_merge_that_is_killed_is_there_as_a_whole_or_not_at_all(tmp_path: Path, name: str) -> None:
    """At some of its steps; and nothing of it is left over."""
    of = prepared(name, tmp_path / "job")
    count, chance = operations_of(of), Random(name)
    assert count > 20
    was_merged = set[bool]()
    for nth in (1, *chance.sample(range(2, count), 3), count):
        said, merged = kill_and_check(of, nth, chance.choice(MOMENTS))
        assert said >= -1 or nth == count, "it was killed"
        was_merged.add(merged)
    assert was_merged == {False, True}
