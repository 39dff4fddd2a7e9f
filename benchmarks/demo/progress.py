"""Shows how far the stream is: as a bar on a terminal, elsewhere by a line every now and then."""

from collections import deque
from collections.abc import Iterator
from contextlib import nullcontext
from types import TracebackType
from typing import Self

from rich import progress as rich_progress
from rich.console import Console, RenderableType
from rich.text import Text

from benchmarks.demo.events import Committed

LINES_MAX = 12
BATCHES_AVERAGED = 20
LONGEST_BATCH_S = 3.0  # a longer gap between two commits is a restart, and does not count for the rate


class Progress:
    """Batch, rows per second, checkpoint milliseconds, and bytes to both copies so far."""

    def __init__(self, console: Console, days: int) -> None:
        self._console = console
        self._days = days
        self._line_every = max(1, days // LINES_MAX)
        self._recent: deque[Committed] = deque(maxlen=BATCHES_AVERAGED)
        self._primary_bytes = 0
        self._local_bytes = 0
        self._bar = _bar(console) if console.is_terminal else None
        self._task = self._bar.add_task("streaming", total=days, numbers="") if self._bar else None

    def __enter__(self) -> Self:
        (self._bar or nullcontext()).__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.__exit__(kind, error, trace)

    def committed(self, event: Committed) -> None:
        """Show that another batch is durable."""
        self._recent.append(event)
        self._primary_bytes += event.info.primary_bytes
        self._local_bytes += event.info.local_bytes
        done = event.batch + 1
        numbers = (
            f"{self._rate()} rows/s  checkpoint {event.info.seconds * 1000:5.1f} ms  "
            f"primary {size(self._primary_bytes)}  local {size(self._local_bytes)}"
        )
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, numbers=numbers)
        elif done % self._line_every == 0 or done == self._days:
            self._console.print(f"batch {done:3}/{self._days}  {numbers}", highlight=False)

    def _rate(self) -> str:
        """Rows per second over the last batches, without restarts."""
        pairs = zip(self._recent, list(self._recent)[1:], strict=False)
        gaps = [(later.at_s - earlier.at_s, later.rows) for earlier, later in pairs]
        steady = [(seconds, rows) for seconds, rows in gaps if seconds < LONGEST_BATCH_S]
        if not steady:
            return "     -"
        return f"{sum(rows for _, rows in steady) / sum(seconds for seconds, _ in steady):6,.0f}"

    def say(self, sentence: str) -> None:
        """Print a line above the bar."""
        self._console.print(sentence, highlight=False)


class _Bar(rich_progress.Progress):
    """A bar with the numbers below it, so that both fit into 80 columns."""

    def get_renderables(self) -> Iterator[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        yield from (Text(task.fields["numbers"]) for task in self.tasks)


def _bar(console: Console) -> _Bar:
    return _Bar(
        rich_progress.TextColumn("batch {task.completed:3.0f}/{task.total:.0f}"),
        rich_progress.BarColumn(bar_width=46),
        rich_progress.TimeElapsedColumn(),
        console=console,
    )


def size(count: float) -> str:
    """A byte count for people to read."""
    if count < 1024:
        return f"{count:.0f} B"
    return f"{count / 1024:.1f} KiB" if count < 1024 * 1024 else f"{count / 1024 / 1024:.1f} MiB"
