"""The table of owners is whole: each row has one test, each test a row, and a row says what can be seen."""

import ast
from collections import Counter
from pathlib import Path

from tests.ownership.table import FATES, ROWS, parse

HERE = Path(__file__).parent


def bindings() -> list[tuple[str, str]]:
    """Row and test of every `@row("...")` in this directory."""
    return [
        (ast.literal_eval(decorator.args[0]), f"{path.name}:{node.name}")
        for path in sorted(HERE.glob("test_*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call) and isinstance(decorator.func, ast.Name) and decorator.func.id == "row"
    ]


def test_every_row_has_one_test_and_every_test_a_row() -> None:
    """In both directions, by name."""
    tests = Counter(row_id for row_id, _ in bindings())
    rows = Counter(each.row_id for each in ROWS)
    assert tests == rows
    assert set(rows.values()) == {1}


def test_pytest_runs_what_is_bound() -> None:
    """A bound function that is not collected would prove nothing, and neither would one that is bound to two rows."""
    names = [name for _, name in bindings()]
    assert all(name.partition(":")[2].startswith("test_") for name in names)
    assert len(names) == len(set(names)) == len(ROWS)


def test_every_row_is_filled_in() -> None:
    """Who owns it, who deletes it, and a fate that a test can see."""
    for each in ROWS:
        assert all((each.what, each.situation, each.owner, each.deleted_by)), each
        assert each.fate in FATES, each


def test_the_table_is_read_as_it_is_written() -> None:
    """Other tables, and text around, are no rows."""
    text = """
| Row | What | Situation | Owner | Deleted by, when | Fate |
|---|---|---|---|---|---|
| one | a | b | c | d | gone |

| Other | Table |
|---|---|
| two | three |
text | with | bars
"""
    assert [(each.row_id, each.what, each.fate) for each in parse(text)] == [("one", "a", "gone")]
