"""The pages on settings and errors are those that the code makes, and miss nothing."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from docs._site.reference import ESSENTIAL, PAGES
from statebackend import errors
from statebackend.cli.commands import COMMANDS
from statebackend.errors import StateBackendError
from statebackend.settings import Settings
from statebackend.settings.sources import as_variable, dotted_names

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"


@pytest.mark.parametrize(("name", "page"), PAGES.items())
def test_the_page_is_the_one_that_the_code_makes(name: str, page: Callable[[], str]) -> None:
    """If not: `python docs/_site/reference.py settings > docs/reference/settings.md`, and the same for `errors`."""
    assert (REFERENCE / f"{name}.md").read_text(encoding="utf-8") == page()


def test_every_setting_is_there_once_and_those_that_users_set_come_first() -> None:
    """With a meaning, a type and its spelling in the environment."""
    entries = [entry.split("\n\n") for entry in PAGES["settings"]().split("\n### `")[1:]]
    found = {title.removesuffix("`"): (meaning, facts) for title, meaning, facts, *_ in entries}
    assert tuple(found)[: len(ESSENTIAL)] == ESSENTIAL
    assert len(entries) == len(found)
    assert set(found) == set(dotted_names(Settings))
    for name, (meaning, facts) in found.items():
        assert meaning.endswith("."), name
        assert facts.startswith("- "), name
        assert f"`{as_variable(name)}`" in facts


def test_a_number_has_its_unit_and_its_bounds() -> None:
    """Which come from the name and from beside the type."""
    page = PAGES["settings"]()
    assert "- `float`; seconds; default `0.01`; finite and not negative; `STATEBACKEND_" in page
    assert "- `int`; bytes; default `104857600` (100 MiB); at least 1; `STATEBACKEND_" in page
    assert "- `float`; per second; default `3000.0`; finite and positive; `STATEBACKEND_" in page
    assert "- `Secret`, or none; default `None`; `STATEBACKEND_" in page


def test_every_error_is_there_once_with_what_to_do() -> None:
    """By what to do next, in the order of the tree. Those that others derive from them are not on the page."""

    class OwnError(errors.StoreAccessError): ...

    rows = [line.split(" | ") for line in PAGES["errors"]().splitlines() if line.startswith("| `")]
    classes = {
        name for name, cls in vars(errors).items() if isinstance(cls, type) and issubclass(cls, StateBackendError)
    }
    assert sorted(row[0].strip("|` ") for row in rows) == sorted(classes - {"StateBackendError"})
    assert all(row[2].endswith(". |") for row in rows)
    assert issubclass(OwnError, StateBackendError)


def test_every_command_is_there_with_its_arguments() -> None:
    """The parser knows them; each argument has a meaning."""
    page = PAGES["command-line"]()
    commands = re.findall(r"^## `statebackend ([\w-]+)`$", page, re.MULTILINE)
    assert {"inspect", "export", "drop"} <= set(commands)
    assert set(commands) == set(COMMANDS)
    assert "| `--format {parquet,csv,jsonl}` | " in page
    assert "None" not in page
