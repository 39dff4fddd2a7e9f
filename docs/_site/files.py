"""Fills `docs/reference/files.md` in the site: a line for what each file of the library has, room by room.

The line is the first paragraph of the file's own docstring, and the rooms come in the order of the layers in
`pyproject.toml`. The text is made while the site is built and kept nowhere; `python docs/_site/files.py` prints it.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
LIBRARY: Final = ROOT / "statebackend"
PAGE: Final = ROOT / "docs" / "reference" / "files.md"
DOCNAME: Final = "reference/files"
PLACE: Final = "<!-- filled while the site is built -->"


def layers() -> list[list[str]]:
    """The rooms of each layer, from the top down, as the contract in `pyproject.toml` has them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = (each for each in project["tool"]["importlinter"]["contracts"] if each["id"] == "rooms")
    return [re.findall(r"\w+", layer) for layer in contract["layers"]]


def sentence_of(path: Path) -> str:
    """The first paragraph of a module's docstring, on one line. Raises `ValueError` if there is none."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    if not docstring:
        raise ValueError(f"{path} has no docstring")
    return " ".join(docstring.partition("\n\n")[0].split())


def entries_of(folder: Path) -> Iterator[str]:
    """A line for each file of a folder, then the folders in it. Its own sentence is not among them."""
    for path in sorted(folder.glob("*.py")):
        if path.name != "__init__.py":
            yield f"- `{path.relative_to(LIBRARY).as_posix()}`: {sentence_of(path)}"
    for path in sorted(folder.glob("*/__init__.py")):
        inner = path.parent
        yield f"- `{inner.relative_to(LIBRARY).as_posix()}/`: {sentence_of(path)}"
        yield from (f"  {line}" for line in entries_of(inner))


def layer_of(rooms: Sequence[str]) -> Iterator[str]:
    """The part of the page about one layer: a section for each folder, and one for its single files."""
    for name in rooms:
        if (folder := LIBRARY / name).is_dir():
            yield f"## `{name}/`\n\n{sentence_of(folder / '__init__.py')}\n"
            yield "\n".join([*entries_of(folder), ""])
    files = [f"{name}.py" for name in rooms if not (LIBRARY / name).is_dir()]
    if files:
        yield f"## {', '.join(f'`{file}`' for file in files)}\n"
        yield "\n".join([*(f"- `{file}`: {sentence_of(LIBRARY / file)}" for file in files), ""])


def page_of(text: str, rooms: Sequence[Sequence[str]]) -> str:
    """The whole page, given what is kept of it and the rooms of each layer. Raises `ValueError` if it has no place."""
    if text.count(PLACE) != 1:
        raise ValueError(f"{PAGE} has no line {PLACE}")
    block = "\n".join(["```text", *(" | ".join(layer) for layer in rooms), "```", ""])
    return text.replace(PLACE, "\n".join([block, *(part for layer in rooms for part in layer_of(layer))]))


def _read(_app: Any, docname: str, source: list[str]) -> None:
    if docname == DOCNAME:
        source[0] = page_of(source[0], layers())


def setup(app: Any) -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("source-read", _read)
    return {"parallel_read_safe": True}


if __name__ == "__main__":
    sys.stdout.write(page_of(PAGE.read_text(encoding="utf-8"), layers()))
