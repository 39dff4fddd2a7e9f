"""The page of promises says what the code reads, and what the project supports."""

import ast
import re
import tomllib

import statebackend
from statebackend._codec import commit, local_snapshot, segment, staged
from tests.tidy.test_words import ROOT

PAGE = (ROOT / "docs" / "reference" / "policy.md").read_text(encoding="utf-8")


def test_the_newest_release_reads_what_the_table_says() -> None:
    """A new version of a format is a new row with a new release; the rows of earlier releases stay."""
    rows = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if re.match(r"\| \d", line)]
    versions = (commit.VERSION, segment.VERSION, staged.VERSION, local_snapshot.VERSION)
    read = ["1" if version == 1 else f"1 to {version}" for version in versions]
    assert rows[-1] == [statebackend.__version__, *read]


def test_there_is_an_old_file_of_each_version() -> None:
    """By which every later release is held to this one."""
    names = " ".join(path.name for path in (ROOT / "tests" / "formats" / "golden").iterdir())
    for stem, version in (("commit", commit.VERSION), ("segment", segment.VERSION)):
        assert [n for n in range(1, version + 1) if f"{stem}-v{n}" not in names] == []
    assert "output-v1" in names
    assert "local-snapshot-v1" in names


def test_supported_releases_are_those_that_are_tested() -> None:
    """The table of the page, the classifiers, the bounds, and the session."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    classified = [each.rpartition(" ")[2] for each in project["classifiers"] if re.search(r":: 3\.\d", each)]
    sessions = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8")).body
    named = {ast.unparse(each.targets[0]): each.value for each in sessions if isinstance(each, ast.Assign)}
    pythons = ast.literal_eval(named["PYTHONS"])
    assert tuple(classified) == pythons
    assert f"| Python | {pythons[0]} to {pythons[-1]};" in PAGE
    supported = re.findall(r"'(4\.\d+)'", ast.unparse(named["PYSPARKS"]))
    assert f"| PySpark | {supported[0]} to {supported[-1]};" in PAGE
    assert f"pyspark>={supported[0]},<5" in project["optional-dependencies"]["spark"]
