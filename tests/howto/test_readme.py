"""The program in the README, on a real session, and what it says about a second run."""

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import statebackend as sb
from tests.howto.pages import ROOT, code_of
from tests.spark.conftest import spark

__all__ = ["spark"]

pytestmark = pytest.mark.spark

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_program_counts_and_goes_on_in_its_next_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it stands, in an empty directory: rows 0 to 999 are those of seven users, and so are the next thousand."""
    program = compile(code_of(README), "README.md", "exec")
    monkeypatch.chdir(tmp_path)
    for run in (1, 2):
        names: dict[str, object] = {}
        exec(program, names)
        settings = names["settings"]
        assert isinstance(settings, sb.Settings)
        counted = sb.read_state(settings, "clicks").read_all().select(["key", "value"]).to_pylist()
        expected = {f"user-{user}": len(range(user, run * 1000, 7)) for user in range(7)}
        assert {row["key"]: row["value"] for row in counted} == expected


def test_what_a_user_sees_is_said_as_it_is() -> None:
    """A thousand rows do not divide by seven: the page once gave everybody the same number."""
    said = README.split("Each run takes the next")[1].split("\n\n")[0]
    for run in (1, 2):
        clicks = [len(range(user, run * 1000, 7)) for user in range(7)]
        assert {str(count) for count in clicks} <= set(re.findall(r"\d+", said))
        fewer = {f"user-{user}" for user, count in enumerate(clicks) if count < max(clicks)}
        assert fewer == set(re.findall(r"user-\d", said.split(";")[run - 1]))


def test_the_program_is_short() -> None:
    """About twenty lines, blank ones not counted."""
    program = README.split("```python\n")[1].split("```")[0]
    assert len([line for line in program.splitlines() if line]) <= 20
