"""`transform`: its output, its progress, and its exit status."""

from collections.abc import Iterator
from typing import Any

from statebackend import cli
from tests.cli.conftest import Place

ME = "tests.cli.test_transform"


def renamed(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Another key."""
    yield f"{key}-moved", value


def twice(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The same key again, which is refused."""
    yield from [(key, value), (key, value)]


def archived(key: str, value: Any) -> Iterator[tuple[str, str, Any]]:
    """Into another state."""
    yield "archive", key, value


def test_it_says_what_it_has_done(place: Place) -> None:
    """After a dry run that says the same and writes nothing."""
    status, printed = place.run("transform", "legs", f"{ME}:renamed", "--dry-run")
    assert (status, "legs: 1 keys are written" in printed, "dry run" in printed) == (cli.OK, True, True)
    status, printed = place.run("transform", "legs", f"{ME}:renamed")
    assert (status, "checkpoint 14 has them" in printed) == (cli.OK, True)
    assert "transforming 100%" in printed
    assert place.run("get", "legs", "k-moved")[0] == cli.OK
    assert place.run("get", "legs", "k")[0] == cli.DAMAGE


def test_a_state_that_is_to_be_made_is_named(place: Place) -> None:
    """Or the third part of a pair would make one."""
    assert place.run("transform", "legs", f"{ME}:archived")[0] == cli.WRONG_CALL
    assert place.run("transform", "legs", f"{ME}:archived", "--new-state", "archive")[0] == cli.OK
    assert place.run("get", "archive", "k")[0] == cli.OK


def test_equal_keys_are_counted_and_refused(place: Place) -> None:
    """The dry run has an exit status of its own for a script to see."""
    status, printed = place.run("transform", "legs", f"{ME}:twice", "--dry-run")
    assert (status, "1 keys are there already, such as 'k' in legs" in printed) == (cli.DAMAGE, True)
    assert place.run("transform", "legs", f"{ME}:twice")[0] == cli.WRONG_CALL


def test_a_function_that_is_none_is_a_wrong_call(place: Place) -> None:
    """So is a state that is none."""
    assert place.run("transform", "legs", f"{ME}:nothing")[0] == cli.WRONG_CALL
    assert place.run("transform", "wings", f"{ME}:renamed")[0] == cli.WRONG_CALL
