"""A page is in the contents because it is in its folder: in the order in which the folder's first page links to it.

What that page does not link to follows by name. So a page that is written and listed nowhere does not break the build.
"""

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

SECTIONS: Final = frozenset(
    {"index", "tutorials/index", "how-to/index", "reference/index", "explanation/index", "formats/index"}
)
FIRST_PAGES: Final = SECTIONS | {"reference/api/index", "decisions/README"}


def contents_of(docname: str, text: str, pages: Sequence[str]) -> str:
    """The hidden table of contents of a folder's first page: the pages beside it, and the sections that it links to."""
    folder = PurePosixPath(docname).parent
    linked = dict.fromkeys(re.findall(r"\]\(([A-Za-z0-9/-]+)\.md\)", text))
    first = [page for page in linked if page in pages or str(folder / page) in FIRST_PAGES]
    rest = [page for page in pages if page not in linked and str(folder / page) != docname]
    return "\n".join(["", "```{toctree}", ":hidden:", ":titlesonly:", "", *first, *rest, "```", ""])


def _read(app: Any, docname: str, source: list[str]) -> None:
    if docname in FIRST_PAGES:
        folder = (Path(app.srcdir) / docname).parent
        source[0] += contents_of(docname, source[0], sorted(path.stem for path in folder.glob("*.md")))


def setup(app: Any) -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("source-read", _read)
    return {"parallel_read_safe": True}
