"""A bucket as the primary, against a server in memory on this machine, which shares its processors with us.

So a figure is a ratio to a bare aiobotocore client that does the same in the same run: the server's cost is in both.
"""

import os
import tempfile
from pathlib import Path

from benchmarks.contest import Report
from benchmarks.s3 import checkpoints, restores, uploads
from benchmarks.servers import MINISTACK_PYTHON, run_ministack


def run(report: Report, *, rounds: int = 3) -> None:
    """All of it; about two minutes. Nothing if there is no server."""
    python = os.environ.get(MINISTACK_PYTHON)
    if python is None:
        report.skip(f"{MINISTACK_PYTHON} does not say where MiniStack is; `nox -s bench -- s3` installs it")
        return
    with tempfile.TemporaryDirectory() as directory, run_ministack(python, Path(directory) / "log") as server:
        uploads.run(report, server, rounds)
        checkpoints.run(report, server)
        restores.run(report, server, rounds)
