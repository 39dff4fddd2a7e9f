"""Spark's checkpoint on a local disk, written by the class that the log and the docs advise instead of the default.

It does what the default does, in the same order, without starting processes: a temporary file, closed; a look for the
file's own name; renamed; and then the same for the checksum. So a kill leaves what a kill leaves with the default.
"""

import functools
import json
import logging
import os
import random
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError

from statebackend.spark import advice
from statebackend.spark.advice import CHECKPOINT_FILES, by_file_system
from tests.spark.conftest import configured
from tests.spark.test_cluster import BATCHES, only_long
from tests.spark.test_kill import running

LOGS = ("sources/0", "offsets", "commits")
"""In the order in which a batch writes a file to each."""
FILES_PER_LIFE = 12


@pytest.fixture
def advised(spark):
    """The session with the advised setting."""
    with configured(spark, {CHECKPOINT_FILES: by_file_system()}):
        yield spark


@pytest.mark.parametrize("file_system", [False, True])
def test_each_run_says_once_how_its_checkpoint_is_written_faster(
    stream, open_sink, counting, caplog, file_system
) -> None:
    """Unless it is."""
    stream.feed("a")
    stream.feed("b")
    settings = {CHECKPOINT_FILES: by_file_system()} if file_system else {}
    with configured(stream.spark, settings), caplog.at_level(logging.INFO, advice.__name__):
        stream.run(open_sink(counting, stream.settings))
    told = [record.getMessage() for record in caplog.records if CHECKPOINT_FILES in record.getMessage()]
    assert len(told) == (0 if file_system else 1)
    assert all(by_file_system() in message for message in told)


def test_the_class_has_another_name_before_spark_4_1() -> None:
    """One that no later release has."""
    assert by_file_system("4.0.5") == "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager"
    assert {by_file_system(release) for release in ("4.1.0", "4.3.0")} == {
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    }


def test_a_file_is_seen_when_it_is_complete_and_is_not_replaced(spark, tmp_path) -> None:
    """What Spark's logs stand on."""
    jvm, folder = spark._jvm, f"file://{tmp_path}"
    path = jvm.org.apache.hadoop.fs.Path
    class_ = functools.reduce(getattr, by_file_system().split("."), jvm)
    files = class_(path(folder), spark._jsc.hadoopConfiguration())
    first = files.createAtomic(path(f"{folder}/7"), False)
    first.write(bytearray(b"first"))
    assert not (tmp_path / "7").exists()
    first.close()
    second = files.createAtomic(path(f"{folder}/7"), False)
    second.write(bytearray(b"second"))
    with pytest.raises(Py4JJavaError, match="FileAlreadyExists"):
        second.close()
    assert (tmp_path / "7").read_text() == "first"


def test_a_query_goes_on_from_whatever_a_kill_left_of_a_file(stream, advised, open_sink, counting, read) -> None:
    """A torn temporary file; or the file, whole, whose checksum has not got its name yet."""

    def fail(df, batch_id, backend):
        raise OSError("killed before the batch was applied")

    def run(*keys):
        stream.feed(*keys)
        stream.run(open_sink(counting, stream.settings))
        assert broken_files(stream.checkpoint) == []

    run("a", "b")
    for moment in ("torn", "no checksum"):
        stream.feed("a")
        stream.fail(open_sink(fail, stream.settings))
        batch = max(int(file.name) for file in (stream.checkpoint / "offsets").glob("[0-9]*"))
        _as_left_by_a_kill(stream.checkpoint / "offsets" / str(batch), torn=moment == "torn")
        run("a")
        _as_left_by_a_kill(stream.checkpoint / "commits" / str(batch), torn=moment == "torn")
        run("a")
    assert read(stream.settings).counts == {"a": 7, "b": 1}
    assert counting.batches == list(range(len(counting.batches)))


@only_long
@pytest.mark.parametrize("checkpoint_files", ["", by_file_system()])
def test_a_stream_killed_while_it_writes_its_checkpoint_finds_it_whole(
    stream, open_sink, counting, read, checkpoint_files
) -> None:
    """By SIGKILL, again and again, at chosen and random moments; with the default, too, for comparison."""
    rng, counts, killed = random.Random(7), Counter[str](), 0
    for _ in range(max(1, BATCHES // 10)):
        for _ in range(FILES_PER_LIFE):
            keys = rng.choices("abcdef", k=3)
            counts.update(keys)
            stream.feed(*keys)
        with running(stream.checkpoint.parent, "never", -1, checkpoint_files) as child:
            killed += _killed_while_writing(child, stream.checkpoint, rng)
        assert broken_files(stream.checkpoint) == []
    stream.run(open_sink(counting, stream.settings))
    found = read(stream.settings)
    print(f"{killed} kills, {len(found.batches)} batches", flush=True)
    assert killed
    assert found.counts == counts
    assert found.batches == list(reversed(range(len(found.batches))))


def broken_files(checkpoint: Path) -> list[str]:
    """The files of Spark's logs that are not what they should be."""
    return [str(file) for log in LOGS for file in (checkpoint / log).glob("[0-9]*") if not _is_whole(file.read_text())]


def _is_whole(text: str) -> bool:
    version, *lines = text.splitlines()
    try:
        return version == "v1" and all(json.loads(line) for line in lines if line != "-")
    except ValueError:
        return False


def _as_left_by_a_kill(file: Path, *, torn: bool) -> None:
    """As if SIGKILL had come while `file` was written, or between its name and that of its checksum."""
    unnamed = file.with_name(f".{file.name}.0123-4567.tmp")
    file.with_name(f".{file.name}.crc").rename(file.with_name(f".{unnamed.name}.crc"))
    if torn:
        file.rename(unnamed)
        os.truncate(unnamed, 3)


def _killed_while_writing(child: subprocess.Popen[bytes], checkpoint: Path, rng: random.Random) -> bool:
    """Kill the child within 4 ms after it has begun a file, one of the first thirty. False if it came to its end."""
    seen: set[Path] = set(checkpoint.glob("*/.*.tmp")) | set(checkpoint.glob("*/*/.*.tmp"))
    before, last = len(seen), rng.randrange(30)
    while child.poll() is None:
        seen |= {*checkpoint.glob("*/.*.tmp"), *checkpoint.glob("*/*/.*.tmp")}
        if len(seen) - before > last:
            try:
                child.wait(rng.random() * 0.004)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                return True
    return False
