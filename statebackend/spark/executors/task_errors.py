"""How the failure of a task reaches the driver: as text.

Spark passes on nothing of a failed task but the text of its error, among stack traces of Python and Java. It leaves out
what the error was caused by, and so the line of the user's that raised. So a task marks what it has to say, with the
traceback (`range_failed`, `UNFIT_MARK`), and the driver looks for the marks, and for what Spark itself says of workers
that cannot run the task (`error_in`).
"""

import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException
from typing import Final

import msgspec
from pyspark import TaskContext

import statebackend
from statebackend.errors import BatchError, CorruptObjectError, MissingObjectError, SettingsError
from statebackend.ids import KeyGroupRange

UNFIT_MARK: Final = "statebackend: this worker cannot run the task: "
"""Precedes a sentence that says what the worker lacks."""

_FAILED_MARK: Final = "statebackend: the work on a range failed: "
"""Precedes a `_Failure` as JSON."""

_UNFIT: Final = (
    (re.escape(UNFIT_MARK) + "(.*)", "the workers need the driver's package: install it, or ship it (--py-files)"),
    (r"(\[PYTHON_VERSION_MISMATCH\].*)", "the workers need the driver's minor version of Python: set PYSPARK_PYTHON"),
    (r"(No module named '(?:pyarrow|pandas)'.*)", "the workers need pyarrow: install it there, or set PYSPARK_PYTHON"),
    (
        r"(\[(?:PACKAGE_NOT_INSTALLED|UNSUPPORTED_PACKAGE_VERSION)\].*)",
        "the workers need the driver's packages: install them there, or set PYSPARK_PYTHON",
    ),
    (r"(Cannot run program .*)", "the workers have no such Python: set PYSPARK_PYTHON to one that they have"),
)
"""Patterns for the text of a failed job whose workers cannot run the task, each with what to do about it."""

TRACEBACK_CHARS_MAX: Final = 8_000
"""A longer traceback loses its beginning: Spark keeps the text of errors."""

_PACKAGE: Final = str(Path(statebackend.__file__).parent) + os.sep

_LOST: Final = (
    'no copy of the state of a range can be read: put it back, or run one batch with execution="driver" and'
    " fall_back_to_older=True, which goes back to an older checkpoint for all ranges"
)


class _Failure(msgspec.Struct, frozen=True):
    key_groups: str
    attempt: int
    host: str
    raised: str
    is_lost: bool
    """True if the state of the range cannot be restored."""
    traceback: str


def range_failed(error: BaseException, key_groups: KeyGroupRange) -> BatchError:
    """In a task: the error to raise, so that the driver learns which attempt at which range failed, and with what."""
    context = TaskContext.get()
    failure = _Failure(
        key_groups=str(key_groups),
        attempt=0 if context is None else context.attemptNumber(),
        host=socket.gethostname(),
        raised=f"{type(error).__name__}: {error}",
        is_lost=isinstance(error, (CorruptObjectError, MissingObjectError)),
        traceback=_of_user_code(error)[-TRACEBACK_CHARS_MAX:],
    )
    return BatchError(_FAILED_MARK + msgspec.json.encode(failure).decode())


def error_in(text: str) -> Exception | None:
    """In the driver: what the text of a failed job says of a range or of the workers. `None` if it is neither."""
    if failures := re.findall(re.escape(_FAILED_MARK) + r"(\{.*\})", text):
        failure = msgspec.json.decode(failures[-1], type=_Failure)
        return BatchError(
            _LOST if failure.is_lost else "the work on a range of key groups failed on an executor",
            key_groups=failure.key_groups,
            attempt=failure.attempt,
            host=failure.host,
            raised=failure.raised,
            traceback=failure.traceback,
        )
    for pattern, advice in _UNFIT:
        if found := re.search(pattern, text):
            return SettingsError(advice, found=found[1].strip())
    return None


def _of_user_code(error: BaseException) -> str:
    """The traceback of `error` and of what it was caused by, without our own frames; with them if there are no others.

    Ours are the same for every error, and lie between Spark and the user's line.
    """
    told = TracebackException.from_exception(error)
    if any(not _is_ours(frame) for each in _chain(told) for frame in each.stack):
        for each in _chain(told):
            each.stack = StackSummary.from_list([frame for frame in each.stack if not _is_ours(frame)])
    return "".join(told.format()).rstrip()


def _is_ours(frame: FrameSummary) -> bool:
    return frame.filename.startswith(_PACKAGE)


def _chain(told: TracebackException) -> Iterator[TracebackException]:
    """The error, what it was caused by or raised in the handling of, and the members of groups, each once."""
    waiting: list[TracebackException | None] = [told]
    while waiting:
        if (each := waiting.pop()) is not None:
            yield each
            waiting += (each.__cause__, each.__context__, *(getattr(each, "exceptions", None) or ()))
