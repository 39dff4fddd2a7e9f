"""The site's search: pages that say how come before those that say why, each with an excerpt, also without a network.

Sphinx's search finds the pages; `static/scorer.js` ranks them. Sphinx takes an excerpt from the page itself, which a
browser does not load from a disk: so the texts of all sections lie in a script beside the page of the search.
"""

import json
import re
from pathlib import Path
from typing import Any, Final

from docutils import nodes

TEXTS: Final = "search-texts.js"
SHOWN: Final = (nodes.paragraph, nodes.term, nodes.literal_block, nodes.entry)
"""What an excerpt is made of."""


def texts_of(document: nodes.document) -> dict[str, str]:
    """The text of each section of a page, by its anchor; that before the first heading, by none."""
    found: dict[str, list[str]] = {}
    for node in document.findall(lambda each: isinstance(each, SHOWN)):
        if any(isinstance(above, SHOWN) for above in _ancestors(node)):
            continue
        section = next((above for above in _ancestors(node) if isinstance(above, nodes.section)), None)
        is_first = section is None or isinstance(section.parent, nodes.document)
        anchor = "" if is_first or section is None else f"#{section['ids'][0]}"
        found.setdefault(anchor, []).append(re.sub(r"\s+", " ", node.astext()))
    return {anchor: " ".join(texts) for anchor, texts in found.items()}


def _ancestors(node: nodes.Node) -> list[nodes.Node]:
    above: list[nodes.Node] = []
    while node.parent is not None:
        node = node.parent
        above.append(node)
    return above


def _write_texts(app: Any, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        texts = {name: texts_of(app.env.get_doctree(name)) for name in sorted(app.env.found_docs)}
        written = f"const SEARCH_TEXTS = {json.dumps(texts, ensure_ascii=False)};\n"
        (Path(app.outdir) / "_static" / TEXTS).write_text(written, encoding="utf-8")


def _add_texts(app: Any, page: str, _template: str, _context: Any, _document: Any) -> None:
    if page == "search":
        app.add_js_file(TEXTS)
        app.add_js_file("excerpts.js")


def setup(app: Any) -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("html-page-context", _add_texts)
    app.connect("build-finished", _write_texts)
    return {"parallel_read_safe": True}
