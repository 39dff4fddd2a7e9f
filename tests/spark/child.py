"""A process that runs a stream until it has caught up, or kills itself on the way. Started by `test_kill.py`.

Arguments: the stream's folder; when to die: `function`, `commit` or `never`; in which batch; the class that writes
Spark's checkpoint, or nothing for Spark's default. There is no warning, no `finally`, no `atexit`: SIGKILL, to the
process and to the JVM that it has started.
"""

import os
import signal
import sys
from pathlib import Path

from conftest import Counting, Stream, build_session

import statebackend as sb
from statebackend.spark.advice import CHECKPOINT_FILES


class Mortal(Counting):
    """Counts, and dies in the middle of its batch: the state has changed, nothing is committed."""

    def __init__(self, last_batch: int) -> None:
        super().__init__()
        self._last_batch = last_batch

    def __call__(self, df, batch_id, backend) -> None:
        super().__call__(df, batch_id, backend)
        if batch_id == self._last_batch:
            die()


class Witness(sb.Observer):
    """Dies when it sees the checkpoint: it is committed, and Spark has not heard of it."""

    def __init__(self, last_batch: int) -> None:
        self._last_batch = last_batch

    def checkpoint_committed(self, info: sb.CheckpointInfo) -> None:
        if info.checkpoint_id == self._last_batch:
            die()


def die() -> None:
    os.killpg(0, signal.SIGKILL)


def main(folder: Path, dies_in: str, last_batch: int, checkpoint_files: str) -> None:
    stream = Stream(build_session(folder / "warehouse"), folder)
    if checkpoint_files:
        stream.spark.conf.set(CHECKPOINT_FILES, checkpoint_files)
    function = Mortal(last_batch) if dies_in == "function" else Counting()
    observer = Witness(last_batch) if dies_in == "commit" else None
    stream.run(sb.spark.StatefulSink(function, stream.settings, observer=observer))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4])
