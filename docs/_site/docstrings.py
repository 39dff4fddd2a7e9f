"""Docstrings of the library, as reStructuredText. They are plain prose: names in backquotes, lists, indented blocks.

A public name without a docstring fails the build. A name that two rooms export is documented in one of them, the first
in `HOMES`, and the other page links to it.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from itertools import pairwise
from types import FunctionType
from typing import Any, Final

HOMES: Final = (
    *("abc", "settings", "errors", "", "spark", "owners", "mirrors", "reports", "ids"),
    *("objectstore", "uploaders", "observers", "testing"),
)
CONTRACTS: Final = ("ObjectStore", "StateChangeUploader", "Clock", "Observer", "Serializer")
ITEM: Final = re.compile(r"(- |\d+\. )")


def as_restructured(lines: list[str]) -> list[str]:
    """Names in backquotes become literals, what is indented becomes a block of them, and nothing else is markup."""
    found: list[str] = []
    in_item = False
    for line in _with_literals(lines):
        item = ITEM.match(line)
        indented = line.startswith("  ")
        if line and found and found[-1] and (bool(item) or indented) and not in_item and not found[-1].startswith("  "):
            found.append("")
        if indented and not in_item and not _in_block(found):
            found += ["::", ""]
        if line and not indented and not item and found and found[-1].startswith("  "):
            found.append("")
        in_item = bool(item) or (in_item and (indented or not line))
        found.append(line)
    return [*found, ""]


def _in_block(found: list[str]) -> bool:
    last = next((line for line in reversed(found) if line), "")
    return last.startswith("  ")


def _with_literals(lines: list[str]) -> Iterator[str]:
    """The lines, of which those that are not indented are escaped; a name in backquotes may go on in the next line."""
    paragraph: list[str] = []
    for line in [*lines, ""]:
        if line and (not line.startswith("    ")):
            paragraph.append(line)
            continue
        yield from _escaped("\n".join(paragraph)).split("\n") if paragraph else []
        paragraph = []
        yield line


def _escaped(text: str) -> str:
    def shown(number: int, part: str) -> str:
        if number % 2:
            return f"``{part}``"
        part = re.sub(r"([*|_\\])", r"\\\1", part)
        return "\\ " + part if number and part[:1].isalnum() else part

    return "".join(shown(number, part) for number, part in enumerate(text.split("`")))


def homes() -> dict[str, str]:
    """The room in which each public name is documented, by the name."""
    found: dict[str, str] = {}
    for home in HOMES:
        room = import_module(f"statebackend.{home}".rstrip("."))
        for name in getattr(room, "__all__", []):
            found.setdefault(name, room.__name__)
    return found


def _process(_app: Any, kind: str, name: str, _subject: Any, *rest: Any) -> None:
    lines: list[str] = rest[1]
    if not any(line.strip() for line in lines) and kind in {"module", "class", "exception", "function", "method"}:
        lines[:] = [f"As `{_promised(name)}`."]
    lines[:] = as_restructured(lines)
    if kind == "module":
        names = sorted(getattr(import_module(name), "__all__", []), key=str.lower)
        lines += [" · ".join(f":py:obj:`~{homes()[each]}.{each}`" for each in names), ""]
        for each in names:  # what the room defines itself, Sphinx finds
            is_data = not isinstance(getattr(import_module(name), each), type | FunctionType)
            if is_data and homes()[each] == name != _origin(name, each):
                lines += _data(name, each)


def _data(room: str, name: str) -> list[str]:
    lines = as_restructured(meaning_of(room, name).split("\n"))
    return [f".. py:data:: {name}", "", *(f"   {line}" for line in lines), ""]


def _origin(room: str, name: str) -> str:
    """The module from which a room imports a name, or the room itself."""
    body = ast.parse(inspect.getsource(import_module(room))).body
    imports = [node for node in body if isinstance(node, ast.ImportFrom)]
    return next((str(node.module) for node in imports if name in {alias.name for alias in node.names}), room)


def meaning_of(room: str, name: str) -> str:
    """The docstring of a class or function, or the text below a constant or an alias. Raises `ValueError` if none."""
    public = getattr(import_module(room), name)
    if isinstance(public, type | FunctionType):
        return inspect.cleandoc(public.__doc__ or "")
    origin = _origin(room, name)
    for node, below in pairwise(ast.parse(inspect.getsource(import_module(origin))).body):
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id == name and isinstance(below, ast.Expr):
            return inspect.cleandoc(str(ast.literal_eval(below.value)))
    raise ValueError(f"{room}.{name} has no docstring below it in {origin}")


def _promised(name: str) -> str:
    """The method of a contract that has this name, for a class that implements one without inheriting from it.

    Raises `ValueError` if there is none, which fails the build: a public name without a docstring.
    """
    abc = import_module("statebackend.abc")
    method = name.rpartition(".")[2]
    for contract in CONTRACTS:
        if hasattr(getattr(abc, contract), method):
            return f"{contract}.{method}"
    raise ValueError(f"{name} has no docstring")


def _skip(app: Any, kind: str, name: str, subject: Any, *_rest: Any) -> bool | None:
    if kind != "module":
        return None
    room = "statebackend." + app.env.docname.rpartition("/")[2]
    here = room.replace("statebackend.statebackend", "statebackend")
    imported = not hasattr(import_module(here), "__all__") and getattr(subject, "__module__", here) != here
    return True if imported or homes().get(name, here) != here else None


def setup(app: Any) -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("autodoc-process-docstring", _process)
    app.connect("autodoc-skip-member", _skip)
    return {"parallel_read_safe": True}
