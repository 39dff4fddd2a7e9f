"""The site: contents come from folders, drawings from text, docstrings are markup, and links are followed."""

import re
import subprocess
from pathlib import Path

import pytest

from docs._site.contents import contents_of
from docs._site.docstrings import HOMES, as_restructured, homes, meaning_of
from docs._site.drawings import drawn, svg_of
from docs._site.files import layers
from docs._site.links import broken
from docs._site.questions import QUESTIONS
from docs._site.versions import releases
from tests.tidy.test_words import ROOT


def test_a_page_is_in_the_contents_because_it_is_in_the_folder() -> None:
    """Those that the first page links to come first, in its order; the others follow, and itself is not among them."""
    text = "[b](b.md), [elsewhere](../x/y.md), [b again](b.md), [a section](api/index.md)"
    lines = contents_of("reference/index", text, ["a", "b", "index"]).split()
    assert lines == ["```{toctree}", ":hidden:", ":titlesonly:", "b", "api/index", "a", "```"]


def test_every_public_room_has_its_page() -> None:
    """A room without an underscore is public, but for the command line; and so is the library itself."""
    rooms = {room for layer in layers() for room in layer if not room.startswith("_")} - {"cli"} | {"statebackend"}
    pages = {path.stem for path in (ROOT / "docs" / "reference" / "api").glob("*.md")}
    assert pages - {"index"} == rooms == {home or "statebackend" for home in HOMES}


@pytest.mark.parametrize("path", drawn(), ids=lambda path: path.stem)
def test_a_drawing_is_the_one_that_its_text_makes(path: Path) -> None:
    """If not: `python docs/_site/drawings.py`."""
    assert path.read_text(encoding="utf-8") == drawn()[path]


def test_a_drawing_that_cannot_be_understood_is_refused() -> None:
    """A word that is none, an arrow to a box that is not there, and a box that would be cut off."""
    with pytest.raises(ValueError, match="bix"):
        svg_of("bix a 0 0 | x", "")
    with pytest.raises(KeyError):
        svg_of("size 1 1\nbox a 0 0 | x\narrow a b", "")
    with pytest.raises(ValueError, match="below leaves the drawing"):
        svg_of("size 1 1.5\nbox a 0 0 | x\nbox below 0 1 | y", "")


def test_docstrings_become_literals_lists_and_blocks() -> None:
    """A name may go on in the next line and be followed by a letter; what is markup elsewhere is text here."""
    text = "A `x\ny`s *star*.\n    grammar := `a`\n\n    b := c\n\n- one\n  more\n- two\nThe `end`."
    assert [line for line in as_restructured(text.split("\n")) if line] == [
        "A ``x",
        r"y``\ s \*star\*.",
        "::",
        "    grammar := `a`",
        "    b := c",
        "- one",
        "  more",
        "- two",
        "The ``end``.",
    ]


def test_links_that_lead_nowhere_are_found_and_so_is_what_needs_a_network(tmp_path: Path) -> None:
    """A file or a place on a page that is not there, and a script from elsewhere. A link to elsewhere is neither."""
    (tmp_path / "b.html").write_text('<p id="here">', encoding="utf-8")
    page = '<a href="b.html#here"></a><a href="b.html#gone"></a><a href="c.html"></a><a href="https://x.example"></a>'
    (tmp_path / "a.html").write_text(page + '<script src="https://x.example/y.js"></script>', encoding="utf-8")
    assert broken(tmp_path) == [
        "a.html: loads https://x.example/y.js",
        "a.html: b.html#gone has no such place",
        "a.html: c.html is not there",
    ]


def test_the_switch_of_versions_has_the_releases_that_are_tagged_behind(tmp_path: Path) -> None:
    """Newest first, by number; neither candidates nor what lies elsewhere, and nothing without a history."""
    assert releases(tmp_path) == []

    def git(*words: str) -> None:
        own = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *own, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    for tags in (["v0.9.0", "v0.10.0", "v0.11.0rc1", "nightly"], ["v1.0.0"]):
        git("commit", "--allow-empty", "-m", "more")
        for tag in tags:
            git("tag", tag)
    git("checkout", "v0.10.0")
    assert releases(tmp_path) == ["0.10.0", "0.9.0"]


def test_the_search_is_asked_about_pages_that_are_there() -> None:
    """Twenty of them or more."""
    pages = [page for each in QUESTIONS.values() for page in ([each] if isinstance(each, str) else each)]
    assert [page for page in pages if not (ROOT / "docs" / f"{page}.md").exists()] == []
    assert len(QUESTIONS) >= 20


def places_on(path: Path) -> set[str]:
    """The anchors of a page: its headings, as Markdown's renderers make them."""
    titles = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize(
    "page", sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "docs" / "llms.txt"])
)
def test_every_link_leads_somewhere(page: Path) -> None:
    """To a file that is there, and to a heading on it. The site has its links followed when it is built, in CI."""
    text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\((?!https?:)([^)]+)\)", text):
        name, _, place = link.partition("#")
        path = page.parent / name.replace(".html", ".md") if name else page
        assert path.exists(), link
        assert not place or place in places_on(path), link


def test_every_public_name_has_a_docstring() -> None:
    """Also constants and aliases, whose docstrings stand below them in the source."""
    assert [name for name, room in homes().items() if not meaning_of(room, name)] == []
