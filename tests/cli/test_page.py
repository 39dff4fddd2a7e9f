"""`report --html`: one page that stands alone, that is safe whatever users name things, and that a browser shows."""

import html.parser
import re
import shutil
import subprocess
from pathlib import Path

import anyio
import pytest

import statebackend as sb
from statebackend import cli
from statebackend._log.sweeping.retention import SweepReason
from statebackend.cli import page
from statebackend.cli.page import _VERDICTS, _bars
from tests.cli.conftest import Place

HOSTILE = "<script>alert('&\"')</script>"
ALONE = frozenset({"meta", "rect", "line", "br"})


class Reader(html.parser.HTMLParser):
    """Checks that tags are closed in their order; collects tags, links and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert not {name for name, _ in attrs} & {"src", "href", "onload", "onclick"}
        if tag not in ALONE:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ALONE:
            assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def written(place: Place) -> Path:
    """The page of a job of several checkpoints in which a state and a query have hostile names."""

    async def work() -> None:
        async with sb.open_backend(place.settings) as backend:
            backend.value_state(HOSTILE, int)["k"] = 1
            await backend.checkpoint(20, source=sb.SourceMark(HOSTILE, 9))

    anyio.run(work)
    path = place.directory / "page.html"
    path.write_text("old")
    assert place.run("report", "--html", str(path)) == (cli.OK, "")
    return path


def test_a_page_stands_alone_and_escapes_what_users_named(written: Path) -> None:
    """No script, and nothing to fetch. What is shown is there as text, so that colours carry nothing alone."""
    text = written.read_text(encoding="utf-8")
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    assert {"svg", "table", "style", "title"} <= reader.tags
    assert not {"script", "link", "img", "iframe"} & reader.tags
    assert HOSTILE in reader.text
    assert not re.search(r"https?://|url\((?!#)|@import", text)
    for said in (
        "Checkpoint 20",
        "before-migration",
        "2 times the job was opened",
        "Highest: ",
        "[0, 127]",
        "needed",
        "from local copies",
    ):
        assert said in reader.text
    for chart in (
        "Keys of each state, range by range",
        "Bytes of each state, range by range",
        "Bytes read before each",
    ):
        assert chart in reader.text
    assert f"{HOSTILE} [0, 127]: 1 key" in reader.text
    assert "20: " in reader.text  # each bar has its name and number
    assert sorted(path.name for path in written.parent.iterdir()) == ["local", "page.html", "primary"]


def test_one_value_is_a_sentence_with_both_of_its_parts(written: Path) -> None:
    """The only range once read "last: 0 B": all of it was changelog, which stood on top of nothing."""
    reader = Reader()
    text = written.read_text(encoding="utf-8")
    reader.feed(text)
    said = next(line for line in reader.text.splitlines() if line.startswith("Bytes of each range"))
    assert re.search(r"\[0, 127\]: .+ and (?!0 B)", said)
    assert "last: 0 B" not in reader.text
    figures = text.split("<figure>")[1:]
    assert all(len(re.findall("<g>", figure)) > 1 for figure in figures)
    assert "<p>One range, " in text


def test_a_page_explains_its_words_before_they_are_used(written: Path) -> None:
    """Whoever is sent the page has not read the glossary."""
    text = written.read_text(encoding="utf-8")
    used = text.index("<h2>")
    for word in ("checkpoint", "epoch", "key groups", "base", "changelog", "restore", "primary", "hint"):
        assert text.index(f"<b>{word}</b>") < used
    reader = Reader()
    reader.feed(text)
    for verdict in ("retained", "needed", "hint"):
        assert f"{verdict}: " in reader.text


def test_every_verdict_is_explained() -> None:
    """A new one would be shown without a word."""
    assert set(_VERDICTS) == {verdict.value for verdict in SweepReason}


def test_the_axis_of_a_chart_has_values() -> None:
    """The lowest, the highest and what lies half way, so that a bar can be read without a pointer."""
    drawn = _bars("Bytes", ["a", "b"], [4.0, 8.0], "{:.0f} B".format)
    assert [text for text in re.findall(r">([^<>]+)</text>", drawn) if text.endswith(" B")] == ["0 B", "4 B", "8 B"]
    assert "Highest: 8 B; last: 8 B" in drawn
    stacked = _bars("Bytes", ["a", "b"], [4.0, 0.0], "{:.0f} B".format, more=[0.0, 8.0])
    assert "last: 8 B" in stacked
    of_states = _bars("Bytes", ["a", "b"], [4.0, 8.0], "{:.0f} B".format, over_time=False)
    assert ("Highest: 8 B." in of_states, "last" in of_states) == (True, False)


def test_a_page_that_cannot_be_written_is_told(place: Place) -> None:
    """And no half of it is left."""
    status, printed = place.run("report", "--html", str(place.directory / "no" / "page.html"))
    assert (status, "page.html" in printed) == (cli.WRONG_CALL, True)
    status, printed = place.run("report", "--html", "")
    assert (status, "name the file" in printed) == (cli.WRONG_CALL, True)


def test_a_browser_shows_the_page(written: Path, tmp_path: Path) -> None:
    """Without a network. Most of a blank page would have one colour only."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("a screenshot needs Chromium: apt-get install chromium")
    image = pytest.importorskip("PIL.Image", reason="to look at the screenshot needs Pillow, as in the extra demo")
    shot = tmp_path / "shot.png"
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--proxy-server=127.0.0.1:9"]
    options = [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=900,1600", f"--screenshot={shot}"]
    done = subprocess.run([*command, *options, written.as_uri()], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    with image.open(shot) as picture:
        colours = picture.convert("RGB").getcolors(maxcolors=1 << 24)
    bars = [count for count, colour in colours if colour == (0x44, 0x77, 0xAA)]
    assert sum(bars) > 1000


def test_of_a_long_log_the_newest_checkpoints_are_drawn(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as there is room for."""
    monkeypatch.setattr(page, "COMMITS_MAX", 2)
    path = place.directory / "page.html"
    assert place.run("report", "--html", str(path)) == (cli.OK, "")
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    assert re.findall(r"(1[0-3]): [0-9.]+ s", reader.text) == ["12", "13"]
