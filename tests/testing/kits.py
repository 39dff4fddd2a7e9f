"""Runs a conformance kit without pytest, so that a test can ask which of its tests fail."""

import inspect
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import anyio
import pytest


def names_of(kit: type[Any]) -> set[str]:
    """The names of the kit's tests."""
    return {name for name, _ in inspect.getmembers(kit, inspect.iscoroutinefunction) if name.startswith("test_")}


def failures_of(kit: type[Any], names: Iterable[str]) -> dict[str, BaseException]:
    """Those of the kit's tests that fail, each with its last failure. A test that is skipped does not fail."""
    failures: dict[str, BaseException] = {}
    for name in names:
        for arguments in _arguments_of(getattr(kit, name)):
            try:
                anyio.run(_call, kit(), name, arguments)
            except pytest.skip.Exception:
                pass
            except (Exception, BaseExceptionGroup, pytest.fail.Exception) as error:  # noqa: BLE001  # that is the point
                failures[name] = error
    return failures


async def _call(kit: Any, name: str, arguments: dict[str, Any]) -> None:
    await getattr(kit, name)(**arguments)


def _arguments_of(test: Any) -> Iterator[dict[str, Any]]:
    """Every combination of what the test is parametrized with, as pytest would give it."""
    marks = [mark for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
    for values in itertools.product(*(mark.args[1] for mark in marks)):
        arguments: dict[str, Any] = {}
        for mark, value in zip(marks, values, strict=True):
            names = mark.args[0]
            arguments.update({names: value} if isinstance(names, str) else zip(names, value, strict=True))
        yield arguments
