"""Prints for the commands: in every encoding, to a disk that may be full, to a reader that may have read enough."""

import codecs
import io
import os
import secrets
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final, TextIO, cast

from statebackend._tasks import finish
from statebackend._threads import FileThreads
from statebackend.cli.text import escaped, json_text, visible
from statebackend.errors import InputError, StateBackendError
from statebackend.reports import Row

ROWS_AT_ONCE: Final = 1000
"""How many rows are written in one go: an interruption takes effect only between two of these."""


@contextmanager
def printing() -> Generator[None]:
    """Tell of a standard output that takes no more, as `InputError`: it may be a file on a full disk."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if isinstance(error, StateBackendError):
            raise
        give_up_stdout()
        raise InputError(f"the output cannot be written: {error.strerror}") from error


def prepare_stdout() -> None:
    """Let every output be written: what the encoding of stdout lacks is escaped as in JSON. Raises `InputError`."""
    stdout = cast("TextIO | None", sys.stdout)
    if stdout is None:
        raise InputError("the standard output is closed: give the command one, such as /dev/null")
    if isinstance(stdout, io.TextIOWrapper):
        codecs.register_error("json", _escape)
        cast("io.TextIOWrapper[Any]", stdout).reconfigure(errors="json")


def _escape(error: UnicodeError) -> tuple[str, int]:
    """Escape what cannot be encoded as JSON does. JSON has such text in strings alone, so it stays the same JSON."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return escaped(error.object[error.start : error.end]), error.end


def give_up_stdout() -> None:
    """Write what stdout still holds to nowhere. Python flushes it once more when it exits, and would complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


async def write_rows(rows: Iterator[Row], out: Path | None) -> None:
    """Write a line of JSON for each row. An error or an interruption leaves no file behind. Raises `InputError`."""
    threads = FileThreads(1)
    with _opened(out) as stream:
        # Ctrl-C cancels the task: `finish` lets the thread end first, or it would write to a file that is closed.
        while await finish(lambda: threads.io(_write_some, rows, stream)):
            pass


@contextmanager
def _opened(out: Path | None) -> Generator[TextIO]:
    if out is None:
        with printing():
            yield sys.stdout
        return
    try:
        file = out.open("x", encoding="utf-8")
    except OSError as error:
        raise InputError(f"the file cannot be created: {error.strerror}", out=str(out)) from error
    try:
        with file:
            yield file
    except BaseException as error:
        out.unlink(missing_ok=True)
        if isinstance(error, OSError) and not isinstance(error, StateBackendError):
            raise InputError(f"the file cannot be written: {error.strerror}", out=str(out)) from error
        raise


def _write_some(rows: Iterator[Row], stream: TextIO) -> bool:
    """Write up to `ROWS_AT_ONCE` rows. True if there may be more."""
    room = ROWS_AT_ONCE
    for row in islice(rows, ROWS_AT_ONCE):
        print(json_text(row), file=stream)
        room -= 1
    stream.flush()
    return not room


def print_line(line: str) -> None:
    """Print it, and pass it on at once."""
    with printing():
        print(visible(line), flush=True)


def write_page(text: str, path: Path) -> None:
    """Write the page to `path`, at once and as a whole. Raises `InputError`."""
    if not path.name:
        raise InputError("name the file of the page", html=str(path))
    partial = path.with_name(f".{path.name}-{secrets.token_hex(4)}.partial")  # another report may be on its way there
    try:
        try:
            partial.write_text(text, encoding="utf-8")
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"the page cannot be written: {error.strerror}", html=str(path)) from error
