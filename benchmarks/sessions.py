"""What nox's sessions share: the tests' files in memory, servers, a Java, and each release of PySpark on each Python.

Imported by the noxfile, so with nothing but nox and the standard library.
"""

import functools
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import nox

ROOT: Final = Path(__file__).parents[1]
NO_JAVA_STATUS: Final = 3  # of benchmarks/java.py
NO_NODE_STATUS: Final = 3  # of benchmarks/azurite.py
NO_POSTGRES_STATUS: Final = 3  # of benchmarks/upserts/postgres.py
MINISTACK: Final = "ministack==1.5.33"
PYSPARKS_REFUSED: Final = ("3.5",)
WORKERS: Final = ("-n", "3", "--dist", "loadfile", "--no-loadscope-reorder")
"""Tests of a file stay together, because they share fixtures. `tests/order.py` says which files go where, and when."""
KEEP_COMPILED: Final = {"PYTHONDONTWRITEBYTECODE": ""}
"""Where this is set, every process that a test starts compiles the library anew, and pytest every file of tests."""
MEMORY: Final = Path("/dev/shm")  # noqa: S108  # a directory of ours in it is private
MEMORY_BYTES_MIN: Final = 4 << 30


def run_tests(session: nox.Session) -> None:
    """Run pytest, with all servers that the tests ask for, on what is installed."""
    environment = spark_environment(session) | ministack_environment(session) | azurite_environment(session)
    environment |= postgres_environment(session)
    with files_in_memory(session) as placed:
        command = ("python", "-m", "pytest", *WORKERS, "--durations=25", *session.posargs)
        session.run(*command, env=environment | placed | KEEP_COMPILED)


def announced(session: nox.Session, pairs: Sequence[tuple[str, str]]) -> Generator[tuple[str, str]]:
    """The pairs, one after the other: how many there are is logged, and how long the rest takes at this rate."""
    began_s = time.monotonic()
    for done, (python, pyspark) in enumerate(pairs):
        left = f", about {(time.monotonic() - began_s) / done * (len(pairs) - done) / 60:.0f} min left" if done else ""
        session.log(f"Python {python}, PySpark {pyspark}: {done + 1} of {len(pairs)}{left}")
        yield python, pyspark


def compat_java(session: nox.Session) -> str:
    """The JAVA_HOME for all releases. Installs a Java if there is none."""
    find = ("python", "benchmarks/java.py", str((session.cache_dir / "compat-java").absolute()))
    found = session.run(*find, silent=True, stderr=None, success_codes=[0, NO_JAVA_STATUS])
    if not found:
        session.install(*extra("java"))
        found = session.run(*find, silent=True, stderr=None)
    return str(found).strip()


def compat_of(session: nox.Session, interpreter: str, python: str, pyspark: str, java_home: str) -> dict[str, str]:
    """The outcome of each check on this release, by this Python."""
    own = compat_python(session, interpreter, python)
    folder = compat_pyspark(session, pyspark)
    environment = {"PYTHONPATH": str(folder), "PYSPARK_PYTHON": own, "JAVA_HOME": java_home}
    command = (own, "-m", "benchmarks.compat", *(["--refused"] if pyspark in PYSPARKS_REFUSED else []))
    printed = session.run(*command, env=environment, external=True, silent=True, stderr=None)
    report = json.loads(str(printed).strip().splitlines()[-1])
    session.log(f"Python {report['python']}, PySpark {report['pyspark']}: {report['found']}")
    return dict(report["found"])


@functools.cache
def compat_python(session: nox.Session, interpreter: str, python: str) -> str:
    """The Python of an environment with all that the extra `spark` installs, but for PySpark."""
    folder = (session.cache_dir / f"compat-{python}").absolute()
    own = str(folder / "bin" / "python")
    if not Path(own).exists():
        session.run(interpreter, "-m", "venv", "--clear", str(folder), external=True, silent=True)
    beside = [each for each in extra("spark") if not each.startswith(("pyspark", "statebackend"))]
    session.run(own, "-m", "pip", "install", "--quiet", "-e", ".[columns]", *beside, "setuptools", external=True)
    return own


def compat_pyspark(session: nox.Session, pyspark: str) -> Path:
    """A folder with a release of PySpark, and with what it needs itself. None of that is compiled for one Python."""
    folder = (session.cache_dir / f"compat-pyspark-{pyspark}").absolute()
    if not folder.exists():
        begun = folder.with_name(f"{folder.name}.begun")  # an installation that was interrupted begins again
        shutil.rmtree(begun, ignore_errors=True)
        options = ("--quiet", "--no-compile", "--target", str(begun))
        session.run("python", "-m", "pip", "install", *options, f"pyspark=={pyspark}.*")
        begun.rename(folder)
    return folder


def extra(name: str) -> list[str]:
    """The requirements of an extra, as `pyproject.toml` has them."""
    requirements: list[str] = nox.project.load_toml(ROOT / "pyproject.toml")["project"]["optional-dependencies"][name]
    return requirements


def interpreter_of(python: str) -> str | None:
    """An interpreter of this version that starts: on the path, or among those that pyenv keeps."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    candidates = [shutil.which(f"python{python}"), *map(str, sorted(pyenv.glob(f"{python}.*/bin/python")))]
    for each in filter(None, candidates):
        command = (each, "-c", f"import sys, venv; sys.exit(not sys.version.startswith('{python}.'))")
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:  # a shim may be there for nothing
            return each
    return None


@contextmanager
def files_in_memory(session: nox.Session) -> Generator[dict[str, str]]:
    """A directory for the tests' files: in memory, where there is room, because half of the time goes into `fsync`.

    What survives SIGKILL survives there as well; what survives a power cut is tested on a simulated disk. For a real
    one: `TMPDIR=/var/tmp nox -s tests`.
    """
    if "TMPDIR" in os.environ or not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < MEMORY_BYTES_MIN:
        session.log(f"the tests' files are on a disk: {tempfile.gettempdir()}")
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="statebackend-tests-", dir=MEMORY, ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o711)  # a test that gives up root's rights has to get to its own files
        session.log(f"the tests' files are in memory: {directory}")
        yield {"TMPDIR": directory}


def ministack_environment(session: nox.Session) -> dict[str, str]:
    """Installs MiniStack in an environment of its own, because it pins a botocore that aiobotocore does not accept."""
    folder = (session.cache_dir / f"ministack-{session.name}").absolute()
    python = folder / "bin" / "python"
    if not python.exists():
        session.run("python", "-m", "venv", "--clear", str(folder), silent=True)
    session.run(str(python), "-m", "pip", "install", "--quiet", MINISTACK, external=True, silent=True)
    return {"MINISTACK_PYTHON": str(python)}


def azurite_environment(session: nox.Session) -> dict[str, str]:
    """Installs Azurite from npm, in a folder that all sessions share, if there is npm."""
    root = (session.cache_dir / "azurite").absolute()
    missing = session.run(
        "python", "-m", "benchmarks.azurite", str(root), success_codes=[0, NO_NODE_STATUS], silent=True
    )
    if missing:
        session.warn(f"NOT TESTED against Azure: {missing}")
        return {}
    return {"AZURITE_ROOT": str(root)}


def postgres_environment(session: nox.Session) -> dict[str, str]:
    """Unpacks Postgres from Debian's packages if the machine has none."""
    root = (session.cache_dir / "postgres").absolute()
    quietly = ("-W", "ignore::RuntimeWarning")  # that the package has imported it already; its output is an error
    find = ("python", *quietly, "-m", "benchmarks.upserts.postgres", str(root))
    if missing := session.run(*find, success_codes=[0, NO_POSTGRES_STATUS], silent=True):
        session.warn(f"NOT MEASURED, and not tested, against Postgres: {missing}")
    return {"POSTGRES_ROOT": str(root)}


def spark_environment(session: nox.Session) -> dict[str, str]:
    """A Java that Spark was seen to run on, and the interpreter of its workers. Installs a Java if there is none."""
    shim_dir = session.cache_dir / f"java-{session.name}"
    find = ("python", "benchmarks/java.py", str(shim_dir), "--check")
    found = session.run(*find, silent=True, stderr=None, success_codes=[0, NO_JAVA_STATUS])
    if not found:
        session.install("-e", ".[java]")
        found = session.run(*find, silent=True, stderr=None)
    return {"JAVA_HOME": str(found).strip(), "PYSPARK_PYTHON": str(Path(session.bin, "python"))}
