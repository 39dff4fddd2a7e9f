"""Shows how far a long command is: a bar if stderr is a terminal and `rich` is installed, otherwise lines.

A line is printed for each tenth of a phase, so a log file gets about twenty, however long the command takes. A command
that runs from a timer every night prints no lines: cron would send them as mail.
"""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Final, TextIO

from statebackend._upkeep.progress import Tell
from statebackend.reports import Progress

TENTHS: Final = 10


@contextmanager
def shown(*, lines: bool = False, instead: TextIO | None = None) -> Generator[Tell]:
    """Yield a `tell` that shows each step on stderr, or on `instead`. `lines`: print lines if there can be no bar."""
    stream: TextIO = sys.stderr if instead is None else instead
    if stream.isatty() and find_spec("rich") is not None:
        with _bars(stream) as tell:
            yield tell
    else:
        yield _Lines(stream).tell if lines else lambda _: None


@contextmanager
def _bars(stream: TextIO) -> Generator[Tell]:
    """A bar for each phase."""
    from rich import progress as rich  # noqa: PLC0415  # an extra
    from rich.console import Console  # noqa: PLC0415  # as above

    columns = rich.TextColumn("{task.description}"), rich.BarColumn(), rich.TaskProgressColumn()
    numbers = rich.TimeElapsedColumn(), rich.TextColumn("{task.fields[numbers]}")
    with rich.Progress(*columns, *numbers, console=Console(file=stream)) as bars:
        phases: dict[str, rich.TaskID] = {}

        def move(step: Progress) -> None:
            if step.phase not in phases:
                phases[step.phase] = bars.add_task(step.phase, total=1.0, numbers="")
            bars.update(phases[step.phase], completed=step.share, numbers=_numbers(step))

        yield move


class _Lines:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._told = ("", 0)

    def tell(self, step: Progress) -> None:
        """Print a line if another tenth is done."""
        done = (step.phase, int(step.share * TENTHS))
        if done != self._told:
            self._told = done
            print(f"{step.phase} {step.share:>4.0%}  {_numbers(step)}", file=self._stream, flush=True)


def _numbers(step: Progress) -> str:
    return f"{step.changes:,} changes, {size(step.size_bytes)}"


def size(count: float) -> str:
    """Bytes in the largest fitting unit."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
