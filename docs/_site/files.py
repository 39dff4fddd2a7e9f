"""Generates `docs/reference/files.md`, which says in a line what each file of the library has, room by room.

The line is the first paragraph of the file's own docstring, and the rooms come in the order of the layers in
`pyproject.toml`. `python docs/_site/files.py` writes the page again; a test compares them.
"""

import ast
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
LIBRARY: Final = ROOT / "statebackend"
PAGE: Final = ROOT / "docs" / "reference" / "files.md"

HEAD: Final = """# Every file

Each file of `statebackend/` in the words of its own docstring: a map for those who read the code. A folder is called a
*room*; those that begin with an underscore are private. [The tour](../explanation/internals.md) walks through them with
one row of data, and [the decisions](../decisions/README.md) are listed by room.

The rooms stand from the top down. An import only ever points down this list, rooms on one line do not import each
other, and `nox -s layers` fails if one does.

```text
{layers}
```

{rooms}
This page is generated from the docstrings, by `python docs/_site/files.py`.
"""


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


def page_of(rooms: Sequence[Sequence[str]]) -> str:
    """The whole page, given the rooms of each layer."""
    block = "\n".join(" | ".join(layer) for layer in rooms)
    parts = [part for layer in rooms for part in layer_of(layer)]
    return HEAD.format(layers=block, rooms="\n".join(parts))


if __name__ == "__main__":
    PAGE.write_text(page_of(layers()), encoding="utf-8")
