"""One batch, one frame: refuses another frame, or another sink, for a batch that a job was given in the same run.

Spark calls once for a batch in a run of a query. So whatever else comes under the id of that batch was cut from its
frame by the caller, or is a second sink on the same job. Neither can be told from a replay by the ids that the state
has, and would be skipped as one: a part of the batch would be missing, and nobody told.
"""

from collections.abc import Callable
from typing import Any, Final, cast
from weakref import WeakMethod

from pyspark.sql import DataFrame

from statebackend.errors import InputError
from statebackend.ids import SourceMark
from statebackend.settings import Settings
from statebackend.spark.frames import context_of


class GivenBatch:
    """The newest batch that the sinks of a job were given in this process, and by which of them."""

    def __init__(self) -> None:
        self._mark: SourceMark | None = None
        self._frame: DataFrame | None = None
        self._is_open: WeakMethod[Callable[[], bool]] | None = None

    def take(self, df: DataFrame, delivered: SourceMark, is_open: Callable[[], bool]) -> None:
        """Note that a sink is given `df` as the batch `delivered`. `is_open`, a method of it: has it opened the job?

        Raises `InputError` for another frame of the batch that came last, and for another sink while the first has the
        job open. A frame of the same plan is the same: a retry around the sink may make it anew.
        """
        first = None if self._is_open is None else self._is_open()
        is_known_run = delivered.run_id or context_of(df) is None  # a process of Spark Connect serves one run
        if is_known_run and self._mark is not None and _is_batch(delivered, self._mark) and self._frame is not None:
            if not _is_same(df, self._frame):
                raise InputError(
                    "the job was given this batch already, with other rows: give it the whole batch in one call, and "
                    "branch in the function or processor; or give each part a sink with a job of its own",
                    query_id=delivered.query_id,
                    batch_id=delivered.batch_id,
                )
            if first is not None and first != is_open and first():
                raise InputError(
                    "another sink on this job was given this batch already: give each sink a job of its own, or do the "
                    "work of both in one function or processor",
                    query_id=delivered.query_id,
                    batch_id=delivered.batch_id,
                )
        self._mark, self._frame, self._is_open = delivered, df, WeakMethod(is_open)


def given_batch_of(settings: Settings) -> GivenBatch:
    """That of the job of these settings, in this process."""
    return _given.setdefault((settings.primary, settings.job), GivenBatch())


def _is_batch(delivered: SourceMark, mark: SourceMark) -> bool:
    """True if both name one batch of one run; its session may have changed meanwhile, as in its time zone."""
    return (delivered.query_id, delivered.batch_id, delivered.run_id) == (mark.query_id, mark.batch_id, mark.run_id)


def _is_same(df: DataFrame, other: DataFrame) -> bool:
    """True if both frames come from the same plan, with columns of the same names."""
    same = cast("Callable[[Any], bool]", df.sameSemantics)  # pyright: ignore[reportUnknownMemberType]
    return df is other or (df.columns == other.columns and same(other))


_given: Final[dict[tuple[str, str], GivenBatch]] = {}
