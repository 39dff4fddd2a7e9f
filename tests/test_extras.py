"""Extras: who has not installed one is told which. `nox -s release` installs each where nothing else is."""

import subprocess
import sys
from pathlib import Path

from benchmarks.extras import USES

ROOT = Path(__file__).parents[1]
LIBRARIES = (
    "azure",
    "datasketches",
    "deltalake",
    "opentelemetry",
    "prometheus_client",
    "psycopg",
    "pyarrow",
    "pyiceberg",
    "pyspark",
    "pytest",
    "rich",
    "rocksdict",
)


def test_without_the_libraries_every_use_names_its_extra() -> None:
    """In a process that cannot import any of them, and with an error that shows the command to install it."""
    program = (
        f"import runpy, sys; sys.modules |= dict.fromkeys({LIBRARIES!r}); "
        f"sys.argv[1:] = []; runpy.run_path({str(ROOT / 'benchmarks' / 'extras.py')!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(USES) == len(LIBRARIES)
