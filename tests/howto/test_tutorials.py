"""The tutorials by use case: sessions, alerts, features, enrich. Each program in two runs, and what its check says.

In the long form each is a process that is killed in mid-stream, as the pages say: `nox -s spark`.
"""

import contextlib
import os
import re
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.howto.pages import ROOT
from tests.spark.conftest import spark

__all__ = ["spark"]

pytestmark = pytest.mark.spark

TUTORIALS = ("sessions", "alerts", "features", "enrich")
KILLED_AFTER_COMMITS = 5


def programs_of(name: str) -> dict[str, str]:
    """The programs of a page by the names under which it has them saved."""
    page = (ROOT / "docs" / "tutorials" / f"{name}.md").read_text(encoding="utf-8")
    names = re.findall(r"[Ss]ave it as `(\w+\.py)`", page)
    blocks = [part.split("```")[0] for part in page.split("```python\n")[1:]]
    return dict(zip(names, blocks, strict=True))


@contextlib.contextmanager
def placed(name: str, folder: Path) -> Iterator[None]:
    """The programs of a page in the folder, and its service on a port of its own, if it has one."""
    for file, text in programs_of(name).items():
        (folder / file).write_text(text, encoding="utf-8")
    if not (folder / "places.py").exists():
        yield
        return
    service = runpy.run_path(str(folder / "places.py"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), service["Places"])
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    os.environ["PLACES"] = f"http://127.0.0.1:{server.server_port}"
    try:
        yield
    finally:
        del os.environ["PLACES"]
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for module in (*TUTORIALS, "places"):
        sys.modules.pop(module, None)


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_second_run_goes_on_and_the_check_says_equal(
    spark: SparkSession, folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """On fewer files. Before the second run, which has a file more, the check says otherwise."""
    if name == "features":
        pytest.importorskip("duckdb", reason="the check of the tutorial on features needs duckdb")
    with placed(name, folder):
        program = runpy.run_path(f"{name}.py")
        for files in (range(2), range(8)):
            program["write"](files)
            if files == range(8):
                runpy.run_path("check.py")
            program["run"]()
        runpy.run_path("check.py")
    said = [line for line in capsys.readouterr().out.splitlines() if line in ("EQUAL", "DIFFERENT")]
    assert said == ["DIFFERENT", "EQUAL"]


@pytest.mark.skipif("STATEBACKEND_SPARK_LONG" not in os.environ, reason="nox -s spark: it starts eight Sparks")
@pytest.mark.parametrize("name", TUTORIALS)
def test_killed_in_mid_stream_it_comes_back(folder: Path, name: str) -> None:
    """SIGKILL, to Python and to the JVM that it has started."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with placed(name, folder):
        command = (sys.executable, f"{name}.py")
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                command, env=os.environ | environment, stdout=log, stderr=log, start_new_session=True
            )
            commits = folder / "state" / name / "commits"
            while not commits.is_dir() or len(list(commits.iterdir())) < KILLED_AFTER_COMMITS:
                assert process.poll() is None, (folder / "log").read_text()
                time.sleep(0.01)  # another process is awaited
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        subprocess.run(command, env=os.environ | environment, check=True, capture_output=True)
        checked = subprocess.run(
            (sys.executable, "check.py"), env=os.environ | environment, check=True, capture_output=True, text=True
        )
    assert "EQUAL" in checked.stdout.splitlines()
