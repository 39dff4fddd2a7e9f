"""SIGKILL to the whole streaming process, at the two places that matter, and a restart after each."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from statebackend.spark.advice import by_file_system

HERE = Path(__file__).parent


@contextmanager
def running(folder: Path, dies_in: str, last_batch: int, checkpoint_files: str) -> Iterator[subprocess.Popen[bytes]]:
    """The stream in a process of its own, in a session of its own, which does not outlive the context."""
    command = [sys.executable, str(HERE / "child.py"), str(folder), dies_in, str(last_batch), checkpoint_files]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
    with subprocess.Popen(command, env=environment, start_new_session=True) as child:
        try:
            yield child
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)


def run_until_killed(folder: Path, dies_in: str, last_batch: int, checkpoint_files: str = "") -> None:
    """Run the stream and see it killed."""
    with running(folder, dies_in, last_batch, checkpoint_files) as child:
        assert child.wait(120) == -signal.SIGKILL


def spark_commits(stream) -> list[int]:
    return sorted(int(path.name) for path in (stream.checkpoint / "commits").iterdir() if path.name.isdigit())


@pytest.mark.spark
def test_a_killed_stream_comes_back_with_each_batch_applied_once(stream, open_sink, counting, read) -> None:
    """Killed in the function, the batch is run again; killed after our commit, and before Spark's, it is not.

    Whichever class wrote Spark's checkpoint, and whichever goes on with it.
    """
    for keys in ("ab", "ac", "ad", "ae"):
        stream.feed(*keys)
    folder = stream.checkpoint.parent

    run_until_killed(folder, "function", 1, by_file_system())
    assert spark_commits(stream) == [0]
    assert read(stream.settings).batches == [0]
    assert read(stream.settings).counts == {"a": 1, "b": 1}

    run_until_killed(folder, "commit", 2)
    assert spark_commits(stream) == [0, 1]
    assert read(stream.settings).batches == [2, 1, 0]

    stream.run(open_sink(counting, stream.settings))
    assert counting.batches == [3]
    assert read(stream.settings).batches == [3, 2, 1, 0]
    assert read(stream.settings).counts == {"a": 4, "b": 1, "c": 1, "d": 1, "e": 1}
