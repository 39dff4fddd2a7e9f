"""States behave alike on every table: each test here runs on the heap, and then in RocksDB."""

import importlib
from collections.abc import Generator

import pytest

from statebackend._codec.change_sets import keyed_changes
from statebackend._state import values
from statebackend._state.kinds import every_kind

ON_HEAP_ONLY = {
    "test_key_groups",
    "test_rocksdb",
    "test_row_cache",
    "test_sizes",
    "test_values",
    "test_changing_it_while_iterating_is_an_error",
}
"""Of key groups and of values, which know no tables; of what only RocksDB has; and of what only a dictionary does."""


ON_ROCKSDB_ONLY = {"test_machines_on_rocksdb"}
"""Machines, which pytest cannot give a parameter."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if not ON_HEAP_ONLY & {metafunc.module.__name__.rpartition(".")[2], metafunc.function.__name__}:
        metafunc.parametrize("tables", ["heap", "rocksdb"], indirect=True, scope="module")


@pytest.fixture(autouse=True, scope="module")
def small_steps() -> Generator[None]:
    """Drains and bulk writes go two keys at a time, so that a test of few keys has several steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(every_kind, "DRAINED_AT_ONCE", 2)
        patch.setattr(values, "ENCODED_AT_ONCE", 2)
        patch.setattr(keyed_changes, "PART_RECORDS_MAX", 2)
        yield


@pytest.fixture(autouse=True, scope="module")
def tables(request: pytest.FixtureRequest) -> Generator[None]:
    """The tables that `tests.state.states` makes."""
    on_rocksdb = request.module.__name__.rpartition(".")[2] in ON_ROCKSDB_ONLY
    if getattr(request, "param", "rocksdb" if on_rocksdb else "heap") == "heap":
        yield
        return
    with importlib.import_module("tests.state.rocks").on_rocksdb():  # skipped where the extra is missing
        yield
