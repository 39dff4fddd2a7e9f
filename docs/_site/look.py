"""Looks at every page of the built site in Chromium, by Playwright: narrow and wide, light and dark.

`python docs/_site/look.py CHROMIUM build/site build/pictures` prints what is wrong, one line each, and exits with 1 if
there is anything: a page wider than its window, a picture that is not there, an error of a script, text that is hard to
tell from what is behind it, a drawing that is cut off, or that scrolls without a sign, and texts that overlap in one:
`look.js` decides. It asks the search what `questions.py` has. The rest is for people: it takes pictures, with
`--pictures all` of every page.
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from playwright.sync_api import sync_playwright
from questions import QUESTIONS

WIDTHS: Final = (360, 800, 1400)
"""Pixels: a phone, half a screen, a whole one. The last is also the one in which colours are looked at."""
HEIGHT: Final = 900
SCHEMES: Final = ("light", "dark")
TAKEN: Final = (
    "index",
    "tutorial",
    "explanation/internals",
    "explanation/performance",
    "how-to/index",
    "reference/api/spark",
)
"""Pages of which there is always a picture, one of each kind."""
SCRIPT: Final = Path(__file__).with_name("look.js")

WRONG: Final = {
    "wider than the window": '<p style="width: 3000px">wide</p>',
    "a picture that is not there": '<img src="gone.png">',
    "the sidebar hides where one is": (
        '<div class="sidebar-scroll" style="overflow: auto; height: 50px"><p style="height: 200px">'
        '<p class="current-page"><a>here</a></p></div>'
    ),
    "an error": "<script>undefined.x</script>",
    "contrast": '<p style="color: #999">pale</p>',
    "texts overlap": '<svg><text x="9" y="30">one</text><text x="12" y="32">other</text></svg>',
    "a text leaves its drawing": '<svg width="50"><text x="30" y="30">a long text</text></svg>',
    "cut off": '<div style="overflow: hidden; width: 300px"><svg class="chart" width="900"></svg></div>',
    "scrolls without a sign": '<div style="overflow-x: auto"><svg class="chart" width="900"></svg></div>',
    "wider than its box": '<svg><rect x="9" y="9" width="20" height="20"/><text x="9" y="20">wide</text></svg>',
}
"""Pages with one thing wrong each, by the beginning of the line that has to be found. Looked at before the site."""


class Look:
    """One window of a browser, in which pages are opened one after the other."""

    def __init__(self, tab: Any) -> None:
        self._tab = tab
        self._errors: list[str] = []
        tab.on("pageerror", lambda error: self._errors.append(f"an error: {error}"))
        tab.on("console", lambda said: self._errors.append(f"an error: {said.text}") if said.type == "error" else None)
        tab.on("requestfailed", lambda asked: self._errors.append(f"an error: {asked.url} was not loaded"))

    def at(self, path: Path, place: str = "body") -> list[str]:
        """All that is wrong with a page. It stays open. `place`: the part whose colours are looked at, in CSS."""
        self._errors.clear()
        tab = self._tab
        tab.set_viewport_size({"width": WIDTHS[-1], "height": HEIGHT})
        tab.goto(path.as_uri(), wait_until="load")
        tab.evaluate(SCRIPT.read_text(encoding="utf-8"))
        found = list(tab.evaluate("look.broken().concat(look.drawings(), look.sidebar())"))
        for scheme in SCHEMES:
            tab.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            found += (f"{scheme}: {line}" for line in tab.evaluate("place => look.contrast(place)", place))
        for width in WIDTHS:
            tab.set_viewport_size({"width": width, "height": HEIGHT})
            found += (f"{width} pixels: {line}" for line in tab.evaluate("look.overflow().concat(look.cutOff())"))
        return found + self._errors

    def search(self, site: Path, question: str) -> tuple[str, str]:
        """The page that the search of the site has found first, without its ending, and the excerpt below it."""
        self._errors.clear()
        self._tab.goto(f"{(site / 'search.html').as_uri()}?q={quote(question)}", wait_until="load")
        self._tab.wait_for_selector(
            ".search-summary:has-text('Search finished'), .search-summary:has-text('not match')"
        )
        first = self._tab.locator("ul.search > li").first
        if not first.count():
            return "", ""
        link = first.locator("a").first
        page = str(link.get_attribute("href")).partition("#")[0].removesuffix(".html")
        return page, first.inner_text().removeprefix(link.inner_text())

    def take(self, target: Path) -> None:
        """Pictures of the whole open page: wide and light, narrow and dark."""
        target.parent.mkdir(parents=True, exist_ok=True)
        for width, scheme in ((WIDTHS[-1], SCHEMES[0]), (WIDTHS[0], SCHEMES[1])):
            self._tab.set_viewport_size({"width": width, "height": HEIGHT})
            self._tab.emulate_media(color_scheme=scheme)
            self._tab.screenshot(path=f"{target}-{width}-{scheme}.png", full_page=True)


@contextmanager
def opened(chromium: str) -> Iterator[Look]:
    """A window of this Chromium. What a page asks a network for is not loaded."""
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=chromium) as browser:
        context = browser.new_context(offline=True)
        context.set_default_timeout(120_000)  # milliseconds; a busy machine is no fault of a page
        yield Look(context.new_page())


def misled(look: Look, site: Path) -> Iterator[str]:
    """The questions whose first answer is another page than it should be, or comes without an excerpt."""
    for question, pages in QUESTIONS.items():
        page, excerpt = look.search(site, question)
        if page not in ((pages,) if isinstance(pages, str) else pages):
            yield f"search: {question!r} finds {page or 'nothing'} first"
        elif not excerpt.strip(". \n"):
            yield f"search: {question!r} shows no excerpt"


def unseen(look: Look, folder: Path) -> list[str]:
    """The pages of `WRONG` in which the thing that is wrong is not seen."""
    missed: list[str] = []
    for line, body in WRONG.items():
        page = folder / "wrong.html"
        page.write_text(f"<!doctype html><title>wrong</title><body>{body}</body>", encoding="utf-8")
        if not any(line in found for found in look.at(page)):
            missed.append(f"not seen, though it is there: {line}")
        page.unlink()
    return missed


def main() -> int:
    """The exit status."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("chromium")
    options.add_argument("site", type=Path)
    options.add_argument("pictures", type=Path)
    options.add_argument("--pictures", dest="taken", choices=("some", "all"), default="some")
    given = options.parse_args()
    site: Path = given.site.resolve()
    given.pictures.mkdir(parents=True, exist_ok=True)
    lines: list[str] = []
    with opened(given.chromium) as look:
        lines += unseen(look, given.pictures.resolve())
        lines += misled(look, site)
        for path in sorted(site.rglob("*.html")):
            name = path.relative_to(site).with_suffix("").as_posix()
            found = look.at(path, "body" if name == TAKEN[0] else "[role=main]")
            lines += (f"{name}: {line}" for line in found)
            if found or given.taken == "all" or name in TAKEN:
                look.take(given.pictures / name)
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
