"""Names in the library are the words of the design, and none that says nothing, or that only we would know."""

import ast
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "statebackend"
FORBIDDEN = frozenset({"manager", "helper", "util", "impl", "factory", "handler", "service", "reign"})


def words(name: str) -> set[str]:
    """The words of a snake_case or CamelCase name, in the singular."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return {re.sub(r"ies$", "y", part.lower()).removesuffix("s") for part in parts} | {part.lower() for part in parts}


@cache
def names(path: Path) -> Sequence[tuple[int, str]]:
    """The name of the module at `path`, and those of all classes and functions in it, with their lines."""
    module = path.parent.name if path.name == "__init__.py" else path.stem
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    named = [node for node in nodes if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)]
    return [(1, module), *((node.lineno, node.name) for node in named)]


@pytest.mark.parametrize(
    ("name", "is_forbidden"),
    [
        ("CommitManager", True),
        ("file_utils", True),
        ("open_factories", True),
        ("HTTPHandler", True),
        ("simple", False),
        ("utility", False),
        ("handle_of", False),
    ],
)
def test_forbidden_words_are_told_from_others(name: str, is_forbidden: bool) -> None:
    """A word counts as a whole, in either spelling and in the plural."""
    assert bool(words(name) & FORBIDDEN) is is_forbidden


def test_no_name_is_made_of_a_forbidden_word() -> None:
    """What manages, helps or handles has a name of its own: the glossary in the design has authority."""
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted(LIBRARY.rglob("*.py"))
        for line, name in names(path)
        if words(name) & FORBIDDEN
    ]
    assert found == []
