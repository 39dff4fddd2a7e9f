"""Draws a page as a picture that can be shown to others."""

import io
from collections.abc import Iterable
from pathlib import Path

from statebackend.errors import InputError, needs_extra


def draw(lines: Iterable[str], path: Path) -> None:
    """Draw the lines as SVG or HTML, as the file's suffix says. Replaces the file. Raises `InputError`."""
    if path.suffix not in (".svg", ".html"):
        raise InputError("a picture's name ends in .svg or .html", picture=str(path))
    try:
        from rich.console import Console  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise InputError(needs_extra("a picture", "cli"), picture=str(path)) from error
    page = list(lines)
    console = Console(record=True, file=io.StringIO(), width=max(map(len, page), default=1), highlight=True)
    for line in page:
        console.print(line, markup=False, emoji=False)
    try:
        if path.suffix == ".svg":
            console.save_svg(str(path), title=page[0] if page else "")
        else:
            console.save_html(str(path))
    except OSError as error:
        raise InputError(f"the picture cannot be written: {error.strerror}", picture=str(path)) from error
