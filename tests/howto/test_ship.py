"""The page ship: its program, with the variables and arguments of its manifest, and the signal of Kubernetes."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

import statebackend as sb
from tests.howto.pages import PAGES, ROOT, code_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]  # seconds; Spark starts slowly on a busy machine

PAGE = (PAGES / "ship.md").read_text(encoding="utf-8")
MANIFEST = code_of(PAGE, "yaml")
GRACE_S = int(re.findall(r"terminationGracePeriodSeconds: (\d+)", MANIFEST)[0])
STARTS_WITHIN_S = 300.0


def variables() -> dict[str, str]:
    """The environment of the manifest's container."""
    found = dict(re.findall(r'{name: (\w+), value: "([^"]*)"}', MANIFEST))
    folded = re.findall(r"name: (\w+)\n +value: >-\n((?: {16}.*\n)+)", MANIFEST)
    return found | {name: " ".join(value.split()) for name, value in folded}


class Pod:
    """A directory in the place of the buckets and the volume, and the processes that are started there."""

    def __init__(self, root: Path, log: str = "log") -> None:
        self.root = root
        self.log = root / log
        (root / "job.py").write_text(code_of(PAGE), encoding="utf-8")
        self.settings = sb.Settings(job="clicks", primary=f"file://{root}/states", local=(f"{root}/local",))
        placed = {
            "STATEBACKEND_PRIMARY": self.settings.primary,
            "STATEBACKEND_LOCAL": self.settings.local[0],
            "CHECKPOINT": f"{root}/checkpoint",
        }
        assert placed.keys() < variables().keys()
        self.arguments = variables()["PYSPARK_SUBMIT_ARGS"].replace("local[4]", "local[2]").replace("4g", "1g")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("STATEBACKEND_")}
        self.environment = (
            inherited | variables() | placed | {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
        )

    @contextmanager
    def started(self, *command: str, **more: str) -> Iterator["subprocess.Popen[bytes]"]:
        """A process group of its own, none of which is left."""
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                command, cwd=self.root, env=self.environment | more, stdout=log, stderr=log, start_new_session=True
            )
            try:
                yield process
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def wait_for(self, batches: int, process: "subprocess.Popen[bytes]") -> None:
        """Until so many batches are committed."""
        begun_s = time.monotonic()
        while self.newest() < batches:
            assert process.poll() is None, self.log.read_text()
            assert time.monotonic() < begun_s + STARTS_WITHIN_S, self.log.read_text()
            time.sleep(0.05)  # another process is awaited

    def newest(self) -> int:
        """How many batches are committed: each has its entry in the log, and each opening another."""
        commits = self.root / "states" / "clicks" / "commits"
        return len(list(commits.iterdir())) if commits.is_dir() else 0

    def counted(self) -> tuple[int, int]:
        """The clicks in the state, and those in the batches that it has."""

        async def read() -> tuple[int, int]:
            async with sb.open_backend(self.settings, read_only=True) as backend:
                newest: Any = backend.newest
                return sum(backend.value_state("clicks", int).values()), 1000 * (newest.source.batch_id + 1)

        return anyio.run(read)


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    return Pod(tmp_path)


def test_the_variables_are_settings() -> None:
    """Each of the manifest's that begins like one; another would be refused at the start."""
    settings = sb.Settings.from_env({name: value for name, value in variables().items() if name.startswith("STATE")})
    assert (settings.job, settings.local, settings.local_bytes_max) == ("clicks", ("/var/lib/statebackend",), 8 * 10**9)
    assert settings.primary == "s3://states/production"


def test_the_program_ends_cleanly_within_the_grace_of_kubernetes(pod: Pod) -> None:
    """On SIGTERM to Python, as `tini` passes it on: status 0, and what is committed is whole."""
    with pod.started(sys.executable, "job.py", PYSPARK_SUBMIT_ARGS=pod.arguments) as process:
        pod.wait_for(4, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(GRACE_S) == 0, pod.log.read_text()
    clicks, expected = pod.counted()
    assert clicks == expected > 0


@pytest.mark.skipif("STATEBACKEND_SPARK_LONG" not in os.environ, reason="nox -s spark: it starts two Sparks more")
def test_spark_submit_ends_on_the_signal_and_the_next_one_goes_on(pod: Pod) -> None:
    """The JVM has the signal: no status 0, and nothing is lost or counted twice."""
    submit = shutil.which("spark-submit")
    assert submit
    (pod.root / "lib.zip").write_bytes(b"PK\x05\x06" + 18 * b"\0")  # no modules of ours
    arguments = [*shlex.split(pod.arguments)[:-1], "--py-files", "lib.zip", "job.py"]
    for batches in (4, 8):
        with pod.started(submit, *arguments) as process:
            pod.wait_for(batches, process)
            process.send_signal(signal.SIGTERM)
            assert process.wait(GRACE_S) != 0
        clicks, expected = pod.counted()
        assert clicks == expected > 0
