"""Every row of the failure matrix names a test that is there."""

import re
from functools import cache

import pytest

from tests.tidy.test_words import ROOT

PAGE = ROOT / "docs" / "explanation" / "failure-matrix.md"


def rows() -> list[list[str]]:
    """The cells of every row, but for the heads."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for row in cells if row[0] != "Fails" and not row[0].startswith("---")]


@cache
def names_in(path: str) -> frozenset[str]:
    return frozenset(
        re.findall(r"^ *(?:async )?def (test_\w+)", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
    )


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_a_row_says_all_and_names_a_test_that_is_there(row: list[str]) -> None:
    """A test that is renamed takes its row with it."""
    assert len(row) == 4
    assert all(row)
    path, _, name = row[-1].strip("`").partition("::")
    assert name in names_in(path)
