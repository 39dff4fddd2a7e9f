"""Each block of code on a page is run or checked by a test, or says above itself why it is not.

The reason stands in a comment on the line before the block: `<!-- not run: it needs a bucket of yours -->`.
"""

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from statebackend import Settings
from statebackend.cli.commands import COMMANDS
from statebackend.cli.options import parser
from tests.tidy.test_words import ROOT

PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])
NOT_CODE = frozenset({"text", "hexdump", "{eval-rst}"})
"""Drawings, grammars and output; the dumps on the pages of formats are compared by `tests/formats`."""
RUN_BY = {
    "README.md": "tests/howto/test_readme.py",
    "docs/reference/metrics.md": "tests/observers/test_reference.py",
}
"""Modules that run a page's Python; for a page of `docs/how-to` it is the module of its name."""
NOT_RUN = re.compile(r"<!-- not run: .{12,} -->")


class Block(NamedTuple):
    """A fenced block, the first line of which stands on `line` of its page."""

    page: str
    line: int
    language: str
    text: str
    is_excused: bool


def blocks_of(page: str, text: str) -> Iterator[Block]:
    """The blocks of a page. The fence may be indented, as in a list."""
    lines = text.splitlines()
    start: int | None = None
    for number, line in enumerate(lines):
        fence = re.match(r" *```(\S*)$", line)
        if fence is None or (start is not None and fence[1]):
            continue
        if start is None:
            start = number
        else:
            language = lines[start].strip(" `")
            excused = bool(NOT_RUN.fullmatch(lines[start - 1].strip()))
            yield Block(page, start + 2, language, "\n".join(lines[start + 1 : number]), excused)
            start = None


def name_of(block: Block) -> str:
    return f"{block.page}:{block.line}"


BLOCKS = [
    block
    for path in PAGES
    for block in blocks_of(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
    if block.language not in NOT_CODE and not block.is_excused
]


def runner_of(page: str) -> Path:
    """The module of tests that runs the Python of a page."""
    stem = Path(page).stem.replace("-", "_")
    if page.startswith("docs/tutorials/"):
        return ROOT / "tests/howto/test_tutorials.py"
    return ROOT / RUN_BY.get(page, f"tests/howto/test_{stem}.py")


def commands_of(text: str) -> Iterator[list[str]]:
    """The commands of a block for the shell, without comments; also those in `<(...)`."""
    for line in re.sub(r"\\\n", " ", text).splitlines():
        for command in re.split(r"&&|\|\||\||<\(|\)", line.partition(" #")[0]):
            if words := shlex.split(command, comments=True):
                yield words


def check_command(words: list[str]) -> None:
    """A command is one that the parser understands, a session of ours, or an installation."""
    sessions = re.findall(r"@nox\.session\ndef (\w+)", (ROOT / "noxfile.py").read_text(encoding="utf-8"))
    while re.match(r"[A-Z_]+=", words[0]):  # a variable of the environment before the command
        words = words[1:]
    if words[0] == "statebackend":
        parser().parse_args(words[1:])
    elif words[0] == "nox":
        assert words[1] == "-s"
        assert words[2] in sessions
    elif words[0] not in {"cp", "diff", "export", "mv", "sort"}:
        assert words[:4] == ["python", "-m", "pip", "install"], words


@pytest.mark.parametrize("block", BLOCKS, ids=name_of)
def test_a_block_is_run_or_checked(block: Block) -> None:
    """Python by a module of tests, commands by the parser, settings by `Settings`, JSON by a decoder."""
    if block.language in {"python", "pycon"}:
        assert runner_of(block.page).exists(), f"write {runner_of(block.page)}, or say why: <!-- not run: ... -->"
        assert Path(block.page).stem in runner_of(block.page).read_text(encoding="utf-8")
    elif block.language == "shell":
        for words in commands_of(block.text):
            check_command(words)
    elif block.language == "toml":
        Settings.from_mapping(tomllib.loads(block.text)["statebackend"])
    elif block.language == "json":
        for part in re.split(r"\n(?=[{\[])", block.text):
            json.loads(part)
    else:
        pytest.fail(f"no test runs {block.language!r}: call a drawing or output `text`, or say why it is not run")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_command_that_a_sentence_names_is_there(page: Path) -> None:
    """In backquotes: the word behind `statebackend` is a command, or begins with a capital or a dash."""
    named = re.findall(r"`statebackend ([a-z][\w-]*)", page.read_text(encoding="utf-8"))
    assert set(named) <= set(COMMANDS)


def test_blocks_are_found_with_their_reasons() -> None:
    """Also where they are indented; a reason stands right above, and is more than a word."""
    text = "```python\na = 1\n```\n<!-- not run: it needs a bucket -->\n```shell\nrm\n```\n- x\n  ```\n  y\n  ```\n"
    found = list(blocks_of("page.md", text))
    assert [(block.line, block.language, block.is_excused) for block in found] == [
        (2, "python", False),
        (6, "shell", True),
        (10, "", False),
    ]
    assert not NOT_RUN.fullmatch("<!-- not run: no -->")


@pytest.mark.parametrize("command", ["statebackend swep", "nox -s nothing", "rm -r x"])
def test_a_command_that_is_not_there_is_found(command: str) -> None:
    """A page that misspells one fails."""
    with pytest.raises((SystemExit, AssertionError)):
        check_command(shlex.split(command))
