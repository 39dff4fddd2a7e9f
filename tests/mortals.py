"""Processes that are to be killed, forked from one that has imported what they run: a death costs no imports."""

import itertools
import multiprocessing
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

Report = Callable[[int], None]

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(
    ["statebackend.objectstore.s3", "statebackend.objectstore.azure", "statebackend.testing", "benchmarks.servers"]
)


def last_word(life: Callable[..., Any], *args: Any, words: int | None = None, **death: Any) -> int:
    """Run `life(report, *args, **death)` in a process of its own until it dies, or kill it after so many reports.

    The last number that it reported, or -1. Whichever way it went, it was by SIGKILL.
    """
    ours, its = FORKED.Pipe(duplex=False)
    process = FORKED.Process(target=life, args=(its.send, *args), kwargs=death)
    process.start()
    its.close()
    last = -1
    with ours, suppress(EOFError):
        for count in itertools.count(1):
            last = ours.recv()
            if count == words:
                process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    return last
