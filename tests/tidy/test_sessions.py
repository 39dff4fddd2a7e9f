"""Sessions of nox install what their tests import: one failed at a test that had come to need PySpark."""

import ast
import re
import tomllib
from collections.abc import Iterator

import pytest

from benchmarks.extras import USES
from tests.tidy.test_words import ROOT

NEEDS_SPARK = re.compile(r"^(?:from|import) (?:pyspark|statebackend\.spark|tests\.spark)\b", re.MULTILINE)


def sessions() -> Iterator[tuple[str, str, set[str]]]:
    """By its name: the extras that a session installs, and the folders of tests that it names."""
    for each in ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8")).body:
        if not isinstance(each, ast.FunctionDef):
            continue
        code = ast.unparse(each)
        extras = ",".join(re.findall(r"install\('-e', '\.\[([\w,]+)\]'", code))
        folders = set(re.findall(r"'tests[./](\w+)", code))
        if extras and folders:
            yield each.name, extras, folders


@pytest.mark.parametrize(("name", "extras", "folders"), [pytest.param(*each, id=each[0]) for each in sessions()])
def test_a_session_without_spark_runs_no_test_that_imports_it(name: str, extras: str, folders: set[str]) -> None:
    """At the top of its files; what imports it inside of a test is skipped, or starts a process of its own."""
    if {"spark", "connect"} & set(extras.split(",")):
        return
    files = [path for folder in folders for path in (ROOT / "tests" / folder).rglob("*.py")]
    assert files, name
    needs = [path.name for path in files if NEEDS_SPARK.search(path.read_text(encoding="utf-8"))]
    assert needs == []


def test_a_release_tries_every_extra_for_users() -> None:
    """All that `all` consists of, and that itself; each with a use that has to work."""
    body = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8")).body
    (tried,) = [
        each.value for each in body if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "EXTRAS"
    ]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for_users = set(re.findall(r"[a-z0-9]+", project["optional-dependencies"]["all"][0].partition("[")[2]))
    assert set(ast.literal_eval(tried)) == for_users | {"all"}
    assert set(USES) == for_users
