"""Frees what the traceback of a failed batch refers to.

PySpark keeps the error that a batch function raised, in an object that the JVM refers to until it collects its garbage.
Each frame of the error's traceback keeps its local variables: the backend with the whole state, the rows of the batch,
threads and files. A query that is started again and again after a failure would add one state to the next.
"""

import gc
import sys
import traceback
from collections.abc import Collection, Iterator
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType
from typing import Any, Final, cast

_RESUMABLE: Final = (AsyncGeneratorType, CoroutineType, GeneratorType)


def clear_frames(error: BaseException) -> None:
    """Clear the local variables of all frames that `error` was raised through and that have ended; so with its causes.

    The traceback still says which lines they were at. A frame that still runs, or can be resumed, stays as it is.
    """
    frames = {id(frame): frame for each in _chain(error) for frame, _ in traceback.walk_tb(each.__traceback__)}
    resumable = _resumable(frames.values())
    for number, frame in frames.items():
        if number not in resumable:
            try:
                frame.clear()
            except RuntimeError:
                continue  # it runs; or, since Python 3.13, it can be resumed


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, what it was caused by or raised in the handling of, and the members of groups, each once."""
    found: dict[int, BaseException] = {}
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is not None and id(each) not in found:
            found[id(each)] = each
            waiting += (each.__cause__, each.__context__)
            if isinstance(each, BaseExceptionGroup):
                waiting += cast("BaseExceptionGroup[BaseException]", each).exceptions
    return iter(found.values())


def _resumable(frames: Collection[FrameType]) -> set[int]:
    """The frames of coroutines and generators that have not ended, such as a task that handled the error and goes on.

    Before Python 3.13, clearing one would end it. Only the garbage collector knows whose frame it is.
    """
    if sys.version_info >= (3, 13):
        return set()
    found: set[int] = set()
    for owner in gc.get_referrers(*frames):
        if isinstance(owner, _RESUMABLE):
            found.add(id(_frame_of(owner)))
    return found


def _frame_of(owner: Any) -> FrameType | None:
    return next((getattr(owner, name) for name in ("cr_frame", "gi_frame", "ag_frame") if hasattr(owner, name)), None)
