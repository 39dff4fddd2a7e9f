"""The page "How it is proven" says what the records say, and nothing else has numbers of its own."""

import re

import pytest

from tests.proof.page import PAGE, ROOT, generated, records, shown
from tests.proof.record import ProofRecord
from tests.tidy.test_failure_matrix import names_in

TEXT = PAGE.read_text(encoding="utf-8")


def test_the_page_is_up_to_date_with_the_records() -> None:
    """`python -m tests.proof` makes it so."""
    assert generated(TEXT, records()) == TEXT


def test_every_record_is_on_the_page_once() -> None:
    assert sorted(shown(TEXT)) == sorted(records())


@pytest.mark.parametrize("name", sorted(records()))
def test_a_record_is_repeated_by_a_session_that_is_there(name: str) -> None:
    sessions = re.findall(r"^def (\w+)\(session: nox", (ROOT / "noxfile.py").read_text(encoding="utf-8"), re.MULTILINE)
    record = records()[name]
    assert record.command.split()[:2] == ["nox", "-s"]
    assert record.command.split()[2] in sessions
    assert all(len(row) == len(record.head) for row in record.table)


def test_whatever_replays_what_was_found_is_there() -> None:
    """The rows of "Found on the way" name tests, which are renamed with them."""
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT)
    assert named
    assert [name for path, name in named if name not in names_in(path)] == []


def test_a_table_is_shown_as_it_was_recorded() -> None:
    record = ProofRecord(
        command="nox -s models", run_on="2026-01-02", commit="abc", seconds=90.4, broken=2, head=("what", "many"),
        table=(("kills", 12000),), notes=("Said besides.",),
    )  # fmt: skip
    text = "Before.\n<!-- proof: models -->\n<!-- end -->\nAfter.\n"
    page = generated(text, {"models": record})
    assert page.splitlines() == [
        "Before.",
        "<!-- proof: models -->",
        "`nox -s models`, on 2026-01-02 at `abc`: 90 s, **2 violations**.",
        "",
        "| what | many |",
        "| --- | --- |",
        "| kills | 12,000 |",
        "",
        "Said besides.",
        "<!-- end -->",
        "After.",
    ]
    assert generated(page, {"models": record}) == page
