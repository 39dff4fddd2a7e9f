"""Sphinx's configuration: pages in Markdown, the API from the docstrings, one theme that needs no network.

`nox -s docs` builds with it, and a warning fails the build. Beside it, `docstrings.py` turns the library's docstrings,
which are plain prose with backquotes, into what Sphinx reads; `links.py` follows every link of the built site.
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from absent import make_absent  # noqa: E402  # from this folder

make_absent()

import statebackend  # noqa: E402  # after what makes modules absent
from statebackend import observers, testing  # noqa: E402

project = "statebackend"
author = "The authors of statebackend"
release = version = statebackend.__version__
html_title = f"statebackend {release}"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton", "contents", "docstrings", "files", "inline"]
extensions += ["search", "versions"]
exclude_patterns = ["_site", "changes"]
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["sidebar.js"]
html_search_scorer = str(HERE / "static" / "scorer.js")
templates_path = ["templates"]
html_sidebars = {
    "**": [
        *(f"sidebar/{part}.html" for part in ("brand", "search", "versions", "scroll-start", "navigation")),
        *(f"sidebar/{part}.html" for part in ("scroll-end", "variant-selector")),
    ]
}
html_extra_path = ["../llms.txt"]
html_copy_source = html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}
pygments_style, pygments_dark_style = "github-light-high-contrast", "github-dark"  # Furo brings both

myst_enable_extensions = ["attrs_block", "colon_fence", "html_image"]
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]  # a grammar in a block of text is nobody's language

autodoc_default_options = {"members": True, "undoc-members": True, "member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = False  # it takes no signature that says more than its `def`: `keywords_of`
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
toc_object_entries = False  # of a thousand names, in the sidebar of each page: half of the time of a build

for room, lazy in (
    (statebackend, statebackend.__all__),
    (observers, ["PrometheusObserver", "OpenTelemetryObserver"]),
    (testing, testing.__all__),
):
    for name in lazy:  # what is imported on first use is there before autodoc lists the room
        setattr(room, name, getattr(room, name))
