"""Whichever operation fails, in whatever way, each batch counts once: the short form of `nox -s faults`.

Here each operation is struck in one way, and the ways take turns; there, in every way.
"""

import errno
import itertools
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.file_calls import Call
from tests.faults.file_operations import FileCase, file_cases, run_file_case
from tests.faults.job import KNOWN_ERRORS
from tests.faults.operations import Case, cases, run
from tests.faults.scenarios import SCENARIOS


def in_turn(found: list[Case], directory: Path, step: int) -> set[str]:
    """Every `step`-th request, by the cases in turn. What has come of it."""
    outcomes = set[str]()
    for nth, case in zip(itertools.count(1, step), itertools.cycle(found), strict=False):
        outcome = run(case, nth, directory / str(nth))
        if not outcome:
            return outcomes
        outcomes.add(outcome)
    raise AssertionError


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_whichever_request_fails_each_batch_counts_once(scenario: str, tmp_path: Path) -> None:
    """Once, for ever, or with its answer lost: a known error or success, and the job comes back with every batch."""
    found = [case for case in cases() if (case.scenario, case.table, case.patient) == (scenario, "heap", False)]
    outcomes = in_turn(found, tmp_path, 4)
    assert outcomes - {"success"} <= KNOWN_ERRORS
    assert outcomes - {"success"}, "nothing has failed"


@pytest.mark.parametrize("scenario", ["base", "contribute"])
def test_whichever_request_fails_tables_on_disk_come_back(scenario: str, tmp_path: Path) -> None:
    """The same with files of RocksDB as bases."""
    in_turn([case for case in cases() if (case.scenario, case.table) == (scenario, "rocksdb")], tmp_path, 7)


@pytest.mark.parametrize(
    ("place", "table", "step"),
    [("local", "heap", 131), ("local", "rocksdb", 331), ("tables", "rocksdb", 251), ("primary", "heap", 151)],
)
def test_whichever_file_operation_fails_each_batch_counts_once(
    place: str, table: str, step: int, tmp_path: Path
) -> None:
    """On the local disk nobody even notices: the job goes on, and the log is told once for each root and reason."""
    expected = {"success"} if place == "local" else {"success", *KNOWN_ERRORS}
    for turn, case in enumerate(file_cases()):
        if (case.place, case.table) == (place, table):
            for nth in itertools.count(1 + turn, step):
                outcome = run_file_case(case, nth, tmp_path / f"{turn}-{nth}")
                if not outcome:
                    break
                assert outcome in expected


@pytest.mark.parametrize(
    ("first", "number", "only"),
    [
        (3, errno.EIO, lambda call: call.name == "flock"),  # taken twice, and then not to be released
        (1, errno.EIO, lambda call: call.name == "stat" and call.path.endswith("/taskowned")),
        (1, errno.EIO, lambda call: call.name == "scandir"),
        (1, errno.EROFS, lambda call: call.name in ("unlink", "replace")),
    ],
    ids=["a lock cannot be released", "a sweep cannot look", "a sweep cannot list", "nothing can be removed"],
)
def test_what_a_local_disk_refuses_for_ever_stops_nothing(
    first: int, number: int, only: Callable[[Call], bool], tmp_path: Path
) -> None:
    """It raised when the job was left or swept, or was told of again for each file."""
    case = FileCase("local", "heap", number, onwards=True)
    assert run_file_case(case, first, tmp_path, only=only) == "success"


@pytest.fixture(autouse=True)
def _log_is_as_users_have_it() -> None:
    logging.disable(logging.NOTSET)
