"""Errors: the tree that is drawn is the tree there is, and an error arrives whole wherever it goes."""

import copy
import inspect
import pickle
import re

import pytest

from statebackend import errors
from statebackend.errors import StateBackendError

CLASSES = {
    name: value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, StateBackendError)
}
_LINE = re.compile(r"^ {4}(?P<lines>[│├└─ ]*)(?P<name>[A-Z]\w+)(?: {2,}(?P<words>\S.*))?$")


def drawn_tree(docstring: str) -> dict[str, str | None]:
    """Class and parent of every line: the parent is the nearest one above that stands further left."""
    parents: dict[str, str | None] = {}
    path: list[tuple[int, str]] = []
    for line in docstring.splitlines():
        if match := _LINE.match(line):
            depth = len(match["lines"])
            path = [(other, name) for other, name in path if other < depth]
            parents[match["name"]] = path[-1][1] if path else None
            path.append((depth, match["name"]))
    return parents


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes() -> None:
    """Every class is drawn once, under the class it derives from, and no drawn class is missing."""
    actual = {
        name: next((base.__name__ for base in cls.__bases__ if issubclass(base, StateBackendError)), None)
        for name, cls in CLASSES.items()
    }
    assert drawn_tree(errors.__doc__ or "") == actual
    assert len(actual) > 25


@pytest.mark.parametrize("cls", CLASSES.values())
def test_every_error_says_what_to_do_in_its_docstring(cls: type[StateBackendError]) -> None:
    """It is what a person reads who has met the error for the first time, so it is its own, not an inherited one."""
    assert len((cls.__dict__.get("__doc__") or "").strip()) > 15


@pytest.mark.parametrize("cls", CLASSES.values())
@pytest.mark.parametrize("facts", [{}, {"key": "commits/7", "epoch": 3, "roots": ("/a", "/b"), "missing": None}])
def test_an_error_survives_pickling(cls: type[StateBackendError], facts: dict[str, object]) -> None:
    """From a Spark worker to the driver with its class, its sentence and its facts."""
    error = cls("something is not as it should be", **facts)
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(other) is cls
        assert other.message == error.message == "something is not as it should be"
        assert dict(other.facts) == dict(error.facts) == facts
        assert str(other) == str(error)
        assert other.args == error.args


@pytest.mark.parametrize("cls", CLASSES.values())
def test_the_text_of_an_error_is_its_sentence_and_its_facts(cls: type[StateBackendError]) -> None:
    """Also where a builtin parent has its own idea of what `str` is."""
    assert str(cls("a sentence")) == "a sentence"
    assert str(cls("a sentence", key="k", epoch=3)) == "a sentence (key='k', epoch=3)"


@pytest.mark.parametrize(
    ("name", "builtin"),
    [
        ("SettingsError", ValueError),
        ("KeyTypeError", TypeError),
        ("ValueEncodeError", TypeError),
        ("StateTypeError", TypeError),
        ("ValueDecodeError", ValueError),
        ("KeyGroupError", LookupError),
        ("CheckpointNotFoundError", LookupError),
        ("MissingObjectError", LookupError),
        ("ObjectNotFoundError", LookupError),
        ("StoreError", OSError),
        ("UploadError", OSError),
        ("BatchError", RuntimeError),
    ],
)
def test_an_error_is_the_builtin_one_that_says_the_same(name: str, builtin: type[Exception]) -> None:
    """Code that knows nothing of this library catches it by what it knows."""
    assert issubclass(CLASSES[name], builtin)


def test_only_what_a_retry_may_cure_is_an_os_error() -> None:
    """The retry layer tries again after an `OSError`: fencing, bad input and bad data must never look like one."""
    retried = {name for name, cls in CLASSES.items() if issubclass(cls, OSError)}
    assert retried == {
        "MaterializationError",
        "StoreError",
        "ObjectNotFoundError",
        "ObjectExistsError",
        "StoreAccessError",
        "BucketNotFoundError",
        "ClockSkewError",
        "UnfitStoreError",
        "StoreUnavailableError",
        "StoreThrottledError",
        "StoreFullError",
        "TableDiskError",
        "CacheDiskError",
        "UploadError",
    }
