"""Puts the SVG of a drawing itself into its page, where it takes the page's colours, light or dark."""

from pathlib import Path
from typing import Any

from docutils import nodes
from drawings import FOLDER


def _put_in(_app: Any, document: nodes.document, _docname: str) -> None:
    for number, image in enumerate(list(document.findall(nodes.image))):
        path = FOLDER / Path(image["uri"]).name
        if path.suffix == ".svg" and path.exists():
            svg = path.read_text(encoding="utf-8").replace('id="head"', f'id="head-{number}"')
            svg = svg.replace("url(#head)", f"url(#head-{number})")  # an id is there once on a page
            image.replace_self(nodes.raw("", f'<p class="drawing-place">{svg}</p>', format="html"))


def setup(app: Any) -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("doctree-resolved", _put_in)
    return {"parallel_read_safe": True}
