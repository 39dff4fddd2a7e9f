"""What is asked of a state is asked alike by Python, the shell and Spark; what is said twice has the same keywords."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import statebackend as sb
from statebackend._backend.asked_to_open import HowToOpen
from statebackend._mirroring.keeping_up import HowToMirror, open_mirroring
from statebackend._reading.what_to_read import AskedOfState, WhatToRead
from statebackend._state.declarations import HowToKeep
from statebackend.cli.options import parser
from statebackend.cli.reading import what_to_read
from statebackend.ids import KeyGroupRange
from statebackend.spark.reading.read_options import state_options

ASKED = set(WhatToRead.__annotations__)


def keywords(function: Callable[..., Any]) -> dict[str, Any]:
    """The defaults of its keywords."""
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}


@pytest.mark.parametrize("reader", [sb.read_state, sb.read_batches, sb.export])
def test_every_reader_shows_what_it_takes(reader: Callable[..., Any]) -> None:
    """By name and default, to `help` and to the site, though it is declared once."""
    assert {**keywords(reader), **keywords(AskedOfState)} == keywords(reader)
    assert set(keywords(AskedOfState)) == ASKED


def test_a_job_is_opened_by_the_same_keywords_whole_and_in_parts() -> None:
    """And `help` shows them."""
    assert set(keywords(sb.open_backend)) == {"key_groups", "owners", *HowToOpen.__annotations__}
    assert keywords(sb.open_backend)["read_only"] is False


def test_a_table_is_mirrored_by_the_same_keywords_once_and_for_ever() -> None:
    """And `help` shows them."""
    assert keywords(sb.mirror_once) == keywords(sb.keep_mirrored) == keywords(open_mirroring)
    assert set(keywords(sb.mirror_once)) == set(HowToMirror.__annotations__)


@pytest.mark.parametrize("kind", ["value", "list", "map", "reducing", "aggregating"])
def test_every_kind_of_state_is_declared_by_the_same_keywords(kind: str) -> None:
    """In a backend as in a follower."""
    declared = keywords(getattr(sb.StateBackend, f"{kind}_state"))
    assert declared == keywords(getattr(sb.StateFollower, f"{kind}_state"))
    assert declared.keys() - {"default"} == HowToKeep.__annotations__.keys()
    assert (declared["ttl"], declared["migrate"]) == (None, ())


async def test_a_misspelt_keyword_is_refused() -> None:
    """Before anything is opened: the store is not there."""
    settings = sb.Settings(job="fleet", primary="file:///nowhere")
    with pytest.raises(TypeError, match="colums"):
        sb.read_state(settings, "legs", colums=["x"])  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match="colums"):
        await sb.export(settings, "legs", "legs.csv", colums=["x"])  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def test_a_misspelt_keyword_of_an_opening_is_refused() -> None:
    """Before anything is opened."""
    with pytest.raises(TypeError, match="read_olny"):
        async with sb.open_backend(sb.Settings(job="fleet", primary="memory://typo"), read_olny=True):  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
            pass


async def test_a_misspelt_keyword_of_a_declaration_is_refused() -> None:
    """With its name."""
    async with sb.open_backend(sb.Settings(job="fleet", primary="memory://typo")) as backend:
        with pytest.raises(TypeError, match="tll"):
            backend.value_state("legs", int, tll=None)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def test_key_groups_may_be_a_range() -> None:
    """As an owner has them."""
    assert AskedOfState(key_groups=KeyGroupRange(3, 5)).key_groups == AskedOfState(key_groups=(3, 5)).key_groups


@pytest.mark.parametrize("command", ["scan", "export"])
def test_the_shell_asks_for_all_of_it(command: str) -> None:
    """Each keyword of Python is an option of both commands, and has its value."""
    out = ["out.csv"] if command == "export" else []
    given = ["--key", "N1", "--key-groups", "0-3", "--columns", "a,b", "--ttl-s", "60", "--ttl-now-s", "100"]
    given += ["--migrate", "legs=operator:neg", "--checkpoint-id", "7"]
    found = what_to_read(parser().parse_args([command, "legs", *out, *given, "--job", "j", "--primary", "memory://x"]))
    assert set(found) == ASKED
    asked = AskedOfState(**found)
    assert (asked.keys, asked.key_groups, asked.columns) == ({"N1"}, KeyGroupRange(0, 3), ["a", "b"])
    assert (asked.checkpoint_id, len(asked.migrate), asked.key_as_json) == (7, 1, command == "scan")
    assert asked.ttl is not None
    assert (asked.ttl.seconds, asked.ttl.now and asked.ttl.now()) == (60.0, 100.0)


def test_the_time_of_a_time_to_live_needs_it() -> None:
    """A time alone would leave nothing out, without a word."""
    options = parser().parse_args(["scan", "legs", "--ttl-now-s", "1", "--job", "j", "--primary", "memory://x"])
    with pytest.raises(sb.errors.InputError, match="ttl-s"):
        what_to_read(options)


def test_spark_asks_for_all_of_it() -> None:
    """By options that are named as Spark names its own."""
    settings = sb.Settings(job="fleet", primary="memory://x")
    given = {"job": "fleet", "stateVarName": "legs", "keys": '["N1"]', "keyGroups": "0-3", "columns": "a, b"}
    given |= {"keysAsJson": "true", "ttl": "60", "ttlNow": "100", "checkpointId": "7"}
    found = state_options(given, {"fleet": settings}).what([abs])
    assert set(found) == ASKED
    asked, shell = AskedOfState(**found), AskedOfState(keys=["N1"], key_groups=(0, 3))
    assert (asked.keys, asked.key_groups, asked.checkpoint_id) == (shell.keys, shell.key_groups, 7)
    assert asked.key_as_json
