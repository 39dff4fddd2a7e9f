"""Names are held against the glossary, one word, one meaning; sentences have no phrase that is not plain."""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import msgspec
import pytest

from tests.tidy.test_words import LIBRARY, ROOT, names, words

GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"
NOT_USED = "\n## Not used\n"
FILES = sorted(LIBRARY.rglob("*.py"))
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])
PHRASES = (
    *("whoever", "for who", "of who", "by who", "to who", "reign", "as far as that can be done", "is of no use"),
    *("what is left of", "let go of", "by the word of"),
)
"""What does not occur in a sentence, because it is not plain English."""
QUESTION = re.compile(r"(What|Who|Which|Whose|Whether)\b")


class Word(msgspec.Struct, frozen=True):
    """A row of the glossary."""

    word: str
    meaning: str
    elsewhere: str


def cells_of(part: str) -> Iterator[list[str]]:
    """The cells of every row of every table in this part of the page, but for the heads."""
    for line in part.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if cells and cells[0] not in {"Word", "Instead of"} and not cells[0].startswith("---"):
            yield cells


def rows() -> Iterator[Word]:
    """The words of the glossary."""
    return (Word(*cells) for cells in cells_of(GLOSSARY.read_text(encoding="utf-8").partition(NOT_USED)[0]))


def replaced() -> dict[str, str]:
    """The words that the glossary replaces, and by what."""
    return dict(cells_of(GLOSSARY.read_text(encoding="utf-8").partition(NOT_USED)[2]))


@cache
def sentences(path: Path) -> Sequence[tuple[int, str]]:
    """The docstrings, messages and comments of a module, or the lines of a page, with their lines."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return list(enumerate(text.splitlines(), start=1))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [
        (token.start[0], " ".join(token.string.split()))
        for token in tokens
        if token.type in (tokenize.COMMENT, tokenize.STRING)
    ]


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Every docstring of a module, those of its constants and fields among them, with their lines."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def found_in(paths: list[Path], phrase: str) -> list[str]:
    """The places at which a phrase occurs, as whole words."""
    pattern = re.compile(rf"(?<!\w){re.escape(phrase)}(?!\w)", re.IGNORECASE)
    return [
        f"{path.relative_to(ROOT)}:{line}" for path in paths for line, text in sentences(path) if pattern.search(text)
    ]


def test_each_word_stands_once_and_has_one_sentence() -> None:
    """A word with two meanings would have two rows, or a row with two sentences."""
    counted = Counter(row.word for row in rows())
    assert [word for word, count in counted.items() if count > 1] == []
    assert [row.word for row in rows() if not row.meaning.endswith(".") or ". " in row.meaning] == []


def test_names_on_the_page_are_in_the_library() -> None:
    """A name in backquotes that begins with a capital is that of a class."""
    classes = {name for path in FILES for _, name in names(path)}
    quoted = {name for row in rows() for name in re.findall(r"`([A-Z]\w+)`", row.meaning)}
    assert quoted - classes == set()


def test_no_name_is_a_word_that_the_glossary_replaces() -> None:
    """The words of the last table are in the name of no module, class or function."""
    instead = replaced()
    assert instead.keys() >= {"native"}
    assert set(instead.values()) <= {row.word for row in rows()}
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}: say {instead[word]}"
        for path in FILES
        for line, name in names(path)
        for word in words(name) & instead.keys()
    ]
    assert found == []


def test_a_class_name_has_one_meaning() -> None:
    """No two classes of the library have the same name, private ones included."""
    places: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name.lstrip("_"), []).append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


@pytest.mark.parametrize("phrase", PHRASES)
def test_no_sentence_has_a_phrase_that_is_not_plain(phrase: str) -> None:
    """In docstrings, messages, comments and pages."""
    assert found_in([*FILES, *PAGES], phrase) == []


def test_no_docstring_opens_with_a_question_word() -> None:
    """It says what a thing is or does: a noun, or a verb."""
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text[:60]}"
        for path in FILES
        for line, text in docstrings(path)
        if QUESTION.match(text)
    ]
    assert found == []


def test_a_phrase_is_found_as_whole_words_only() -> None:
    """A part of a longer word is no word."""
    here = Path(__file__)
    assert found_in([here], "whoever")
    assert found_in([here], "whoever"[1:5]) == []
