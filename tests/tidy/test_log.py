"""The log is decoded in one place, and the names of its objects are written in one."""

import re
from pathlib import Path

LIBRARY = Path(__file__).parents[2] / "statebackend"
KITS = "testing/"
"""They name objects as a stranger's store is given them."""


def files_with(pattern: str) -> set[str]:
    """Files of the library in which the pattern occurs in code, or in a docstring."""
    return {
        path.relative_to(LIBRARY).as_posix()
        for path in LIBRARY.rglob("*.py")
        if re.search(pattern, path.read_text(encoding="utf-8"))
    }


def test_entries_of_the_log_are_decoded_by_its_reader_alone() -> None:
    """Anything else asks `LogReader`, which knows what is missing, damaged, swept or a stray."""
    found = files_with(r"\bdecode_entry\b")
    assert found == {"_codec/commit.py", "_log/log_reader.py"}


def test_names_of_objects_are_written_in_one_module() -> None:
    """A prefix that is written out elsewhere is a name that is made or parsed there."""
    found = {name for name in files_with(r"""["'](commits|savepoints|swept|outbox)/""") if not name.startswith(KITS)}
    assert found == {"_log/names.py"}
