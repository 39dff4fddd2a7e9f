"""`clone`: its output, its progress, and its exit status."""

import json

from statebackend import cli
from tests.cli.conftest import Place


def test_it_says_what_it_has_made(place: Place) -> None:
    """The job is there, with what its source had; a second name is needed for a second one."""
    status, printed = place.run("clone", "--from-job", "fleet", job="test")
    assert status == cli.OK
    assert "job test: checkpoint 13 of job fleet" in printed
    assert "copied by the store" in printed
    assert "copying 100%" in printed
    assert place.run("dump", job="test")[1] == place.run("dump")[1]
    assert place.run("clone", "--from-job", "test", job="fleet")[0] == cli.WRONG_CALL


def test_a_part_of_it_and_json(place: Place) -> None:
    """Of a savepoint; and what cannot be is a wrong call."""
    options = ("clone", "--from-job", "fleet", "--savepoint", "before-migration", "--states", "legs", "--json")
    status, printed = place.run(*options, job="part")
    found = json.loads(printed[printed.index("{") : printed.rindex("}") + 1])
    assert (status, found["job"], found["source_job"], found["states"]) == (cli.OK, "part", "fleet", ["legs"])
    assert place.run("clone", job="fleet")[0] == cli.WRONG_CALL
    assert place.run("clone", "--from-job", "nobody", job="other")[0] == cli.WRONG_CALL


def test_another_cloud_has_settings_of_its_own(place: Place) -> None:
    """In a file."""
    file = place.directory / "old.toml"
    file.write_text(f'[statebackend]\njob = "fleet"\nprimary = "{place.settings.primary}"\n', encoding="utf-8")
    status, printed = place.run("clone", "--from-settings", str(file), job="moved")
    assert (status, "job moved: checkpoint 13 of job fleet" in printed) == (cli.OK, True)
