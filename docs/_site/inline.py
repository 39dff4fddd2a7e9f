"""Puts the SVG of a drawing or a chart itself into its page, where it takes the page's colours, light or dark."""

import re
from html import escape
from pathlib import Path
from typing import Any, Final

from docutils import nodes
from drawings import FOLDER

SIDEWAYS: Final = '<span class="sideways" aria-hidden="true">scroll sideways to see all of it</span>'
"""Shown where the window is narrower than the picture: `site.css`."""


def svg_in_page(path: Path, number: int, says: str) -> str:
    """The element of an SVG file. `number`: that of the picture on its page, for an id is there once on a page."""
    svg = path.read_text(encoding="utf-8")
    if path.parent == FOLDER:
        return svg.replace('id="head"', f'id="head-{number}"').replace("url(#head)", f"url(#head-{number})")
    element = svg[svg.index("<svg") :]
    element = re.sub(r"(?s)<metadata>.*?</metadata>", "", element)
    element = re.sub(r' id="(?:figure|axes|patch|text|legend|line2d|[xy]tick|matplotlib)[^"]*"', "", element)
    return element.replace("<svg ", f'<svg class="chart" role="img" aria-label="{escape(says)}" ', 1)


def _put_in(app: Any, document: nodes.document, _docname: str) -> None:
    for number, image in enumerate(list(document.findall(nodes.image))):
        path = Path(app.srcdir) / image["uri"]
        if path.suffix == ".svg" and path.exists():
            svg = svg_in_page(path, number, image.get("alt", ""))
            wide = f'<span class="drawing-place">{SIDEWAYS}{svg}</span>'
            image.replace_self(nodes.raw("", wide, format="html"))


def setup(app: Any) -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("doctree-resolved", _put_in)
    return {"parallel_read_safe": True}
