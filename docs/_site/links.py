"""Follows every link of the built site that stays inside it, and finds what a browser would ask a network for.

`python docs/_site/links.py build/site` prints what is broken, one line each, and exits with 1 if there is anything.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

LOADED: Final = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "srcset"}
NOT_FETCHED: Final = frozenset({"canonical"})
"""Relations of a `link` that name an address without asking for it."""


class Page(HTMLParser):
    """The anchors of a page, its links, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = {"", "top"}
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        loaded = given.get(LOADED.get(tag, ""), "")
        if loaded and given.get("rel") not in NOT_FETCHED:
            self.loads.append(loaded)


def broken(site: Path) -> list[str]:
    """One line for each link that leads nowhere, and for each thing that a page loads from elsewhere."""
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found: list[str] = []
    for path, page in pages.items():
        here = path.relative_to(site.resolve()).as_posix()
        found += [f"{here}: loads {each}" for each in page.loads if urlsplit(each).scheme not in {"", "data"}]
        for link in [*page.links, *page.loads]:
            to = urlsplit(link)
            if to.scheme or to.netloc:
                continue
            target = (path.parent / unquote(to.path)).resolve() if to.path else path
            if not target.exists():
                found.append(f"{here}: {link} is not there")
            elif target in pages and unquote(to.fragment) not in pages[target].anchors:
                found.append(f"{here}: {link} has no such place")
    return found


if __name__ == "__main__":
    lines = broken(Path(sys.argv[1]))
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.exit(bool(lines))
