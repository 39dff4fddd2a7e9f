"""One finds one's way: every file of the library is on the map, and nothing lies around at the top."""

import ast
import re
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings

from docs._site import files

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "statebackend"
TOUR = ROOT / "docs" / "explanation" / "internals.md"

TOP_LEVEL = frozenset(
    {
        ".ci",
        ".git",
        ".gitattributes",
        ".github",
        ".gitignore",
        "LICENSE",
        "README.md",
        "benchmarks",
        "docs",
        "noxfile.py",
        "pyproject.toml",
        "statebackend",
        "tests",
    }
)

MAY_TAKE_SETTINGS = frozenset(
    {
        "__init__.py",
        "_backend",
        "_following",
        "_mirroring",
        "_ranges",
        "_reading",
        "_upkeep",
        "cli",
        "spark",
        "testing",
    }
)


def test_the_site_has_every_file_in_the_words_of_its_docstring() -> None:
    """The page is filled while the site is built, with the layers of the contract in `pyproject.toml`."""
    page = files.page_of(files.PAGE.read_text(encoding="utf-8"), files.layers())
    paths = [path for path in LIBRARY.rglob("*.py") if path.name != "__init__.py"]
    lines = [f"- `{path.relative_to(LIBRARY).as_posix()}`: {files.sentence_of(path)}" for path in paths]
    assert lines
    assert [line for line in lines if page.count(f"{line}\n") != 1] == []
    folders = [path.parent for path in LIBRARY.glob("*/__init__.py")]
    assert [folder.name for folder in folders if f"## `{folder.name}/`\n\n" not in page] == []
    with pytest.raises(ValueError, match=r"files\.md"):
        files.page_of("# Every file\n", files.layers())


def test_files_are_written_where_sphinx_reads_their_page() -> None:
    """Other pages are left as they are."""
    hooks: dict[str, Any] = {}
    files.setup(SimpleNamespace(connect=hooks.__setitem__))
    for docname in (files.DOCNAME, "reference/glossary"):
        source = [f"{files.PLACE}\n"]
        hooks["source-read"](None, docname, source)
        assert (files.PLACE in source[0]) == (docname != files.DOCNAME)


def test_a_file_without_a_docstring_is_refused(tmp_path: Path) -> None:
    """There would be nothing to say about it; of a longer docstring the first paragraph counts."""
    path = tmp_path / "module.py"
    path.write_text('"""Has\nthis.\n\nAnd that."""\n', encoding="utf-8")
    assert files.sentence_of(path) == "Has this."
    path.write_text("x = 1\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"module\.py"):
        files.sentence_of(path)


@pytest.mark.parametrize(
    "page", sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]), ids=lambda page: page.stem
)
def test_no_page_names_a_file_that_is_gone(page: Path) -> None:
    """A path with a folder, in backquotes, exists below `statebackend/` or below the root."""
    named = re.findall(r"`([\w./-]+/[\w.-]+\.(?:py|js|svg|toml|json|bin))`", page.read_text(encoding="utf-8"))
    assert [name for name in named if not ((LIBRARY / name).exists() or (ROOT / name).exists())] == []


def test_tour_opens_functions_that_are_there() -> None:
    """Each stop says "`Class.method` in `room/file.py`"."""
    text = TOUR.read_text(encoding="utf-8")
    opened = re.findall(r"`([\w.]+)`\s+in\s+`([\w/]+\.py)`", text)
    assert len(opened) > len(re.findall(r"^### \d+\.", text, re.MULTILINE))
    assert [(name, path) for name, path in opened if name not in set(definitions(LIBRARY / path))] == []


def definitions(path: Path) -> Iterator[str]:
    """The functions of a module, its classes, and their methods as `Class.method`."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            methods = (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
            yield from (f"{node.name}.{method.name}" for method in methods)


def test_top_level_holds_only_what_belongs_there() -> None:
    """Anything else has a folder to be in, or is named in `.gitignore`."""
    ignored = [
        line.strip("/\n") for line in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines(keepends=True)
    ]
    stray = [
        path.name
        for path in ROOT.iterdir()
        if path.name not in TOP_LEVEL and not any(fnmatch(path.name, pattern) for pattern in ignored)
    ]
    assert stray == []


def test_fragments_of_the_changelog_are_named_as_it_reads_them() -> None:
    """Another name would be left out of the changelog in silence."""
    kinds = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["towncrier"]["type"]
    name = re.compile(rf"\+[\w-]+\.({'|'.join(kind['directory'] for kind in kinds)})\.md")
    fragments = {path.name for path in (ROOT / "docs" / "changes").iterdir()} - {"README.md"}
    assert [each for each in fragments if not name.fullmatch(each)] == []


def test_examples_are_named_alike_in_every_process() -> None:
    """An id with an address in it differs between the workers of one run, which then refuse to begin: `name_of`."""
    careless = [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if re.search(r"\bids=(repr|str|ascii)\b", path.read_text(encoding="utf-8"))
    ]
    assert careless == []


def test_no_example_has_a_deadline() -> None:
    """It would be one by the clock, and fail where others keep the machine busy: `tests/conftest.py`."""
    assert settings().deadline is None


def test_worker_threads_have_one_owner() -> None:
    """A limiter or pool elsewhere makes the bound a multiple of the setting: `docs/decisions/worker-threads.md`."""
    of_their_own = re.compile(r"\bin_thread\b|\bCapacityLimiter\b|\bto_thread\b|\brun_in_executor\b|ThreadPoolExecutor")
    found = {
        path.relative_to(LIBRARY).as_posix()
        for path in LIBRARY.rglob("*.py")
        if "testing" not in path.parts and of_their_own.search(path.read_text(encoding="utf-8"))
    }
    # Spark's frames count actions in the JVM, which are another thing.
    assert found == {"_tasks.py", "_threads.py", "spark/frames.py"}


def test_every_decision_is_in_the_index_once() -> None:
    """A page that is not listed is not found; a room that is named there exists."""
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text(encoding="utf-8")
    pages = sorted(path.name for path in folder.glob("*.md") if path.name != "README.md")
    assert sorted(re.findall(r"\]\(([a-z0-9-]+\.md)\)", index)) == pages
    rooms = {name for line in index.splitlines() if line.startswith("## ") for name in re.findall(r"`(\w+)`", line)}
    assert {name for name in rooms if not ((LIBRARY / name).is_dir() or (LIBRARY / f"{name}.py").exists())} == set()


def test_settings_as_a_whole_go_to_the_roots_and_to_what_stands_above_them() -> None:
    """A component takes the values it needs: that says what it depends on, and a test need not make up the rest."""
    takes = {
        path.relative_to(LIBRARY).parts[0]
        for path in sorted(LIBRARY.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "statebackend.settings"
        if "Settings" in {alias.name for alias in node.names}
    }
    assert takes - {"settings"} <= MAY_TAKE_SETTINGS


def test_one_extra_has_all_that_a_job_may_need() -> None:
    """An extra is in `all`, or is for developing this project, or named here with the reason why not."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    of_developers = {"bench", "demo", "docs", "test", "upserts"}
    left_out = {"connect", "java"}  # a second client of Spark, and a Java beside the machine's own
    named = {name for each in extras["all"] for name in re.findall(r"[a-z0-9]+", each.partition("[")[2])}
    assert named == set(extras) - of_developers - left_out - {"all"}
