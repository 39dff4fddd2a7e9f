"""Makes modules of how-to pages: all Python blocks of a page, one after the other, are one module."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "how-to"


def code_of(text: str, language: str = "python") -> str:
    """The blocks of a page in one language, on the lines on which they stand there; all other lines are empty."""
    lines: list[str] = []
    in_block = False
    for line in text.splitlines():
        if in_block and line == "```":
            in_block = False
        lines.append(line if in_block else "")
        if line == f"```{language}":
            in_block = True
    return "\n".join(lines) + "\n"


def load_page(name: str) -> ModuleType:
    """Run the page's blocks. What fails in them is reported with the page's own line numbers."""
    path = PAGES / f"{name}.md"
    module = ModuleType(f"howto_{name.replace('-', '_')}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    exec(compile(code_of(path.read_text(encoding="utf-8")), str(path), "exec"), module.__dict__)
    return module


def claims_on(name: str) -> dict[str, Any]:
    """The tests that stand on the page, for a module of tests to take in."""
    module = load_page(name)
    return {
        test: value
        for test, value in vars(module).items()
        if test.startswith(("test_", "Test")) and getattr(value, "__module__", None) == module.__name__
    }
