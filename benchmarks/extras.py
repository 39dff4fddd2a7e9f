"""Each extra: what it is for works where it is installed, and says which extra it needs where it is not.

    python benchmarks/extras.py                 the package alone: every use fails, and names its extra
    python benchmarks/extras.py azure           with `statebackend[azure]`: Azure has to work, and what that includes

Run by `nox -s release`, each in an environment with nothing else in it. No server is asked for anything.
"""

import asyncio
import importlib
import importlib.metadata
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Final

import statebackend as sb
from statebackend import cli, observers
from statebackend.errors import StoreAccessError

PACKAGE: Final = "statebackend"


async def count(settings: sb.Settings) -> None:
    """Commit one value."""
    async with sb.open_backend(settings) as backend:
        backend.value_state("clicks", int)["a"] = 1
        await backend.checkpoint(1)


def here(job: str) -> sb.Settings:
    """A job in the current directory."""
    return sb.Settings(job=job, primary=f"file://{Path.cwd()}/primary")


def azure() -> None:
    """Azure's client is made, and has no credentials."""
    try:
        asyncio.run(count(sb.Settings(job="j", primary="azure://account/container")))
    except StoreAccessError:
        return
    raise AssertionError("somebody is let in without credentials")


def columns() -> None:
    """A state is read as columns."""
    settings, read = here("columns"), sb.read_state
    asyncio.run(count(settings))
    assert read(settings, "clicks").read_all()["value"].to_pylist() == [1]


async def count_users(settings: sb.Settings) -> int:
    """How many users there are, by a sketch."""
    _ = sb.ColumnarState  # says what is missing where pyarrow is
    import pyarrow as pa  # noqa: PLC0415  # of an extra

    schema = pa.schema({"users": pa.int64(), "users_sketch": pa.binary()})
    async with sb.open_backend(settings) as backend:
        state = backend.columnar_state("pages", schema, key=pa.string())
        visits = pa.table({"page": ["a", "a"], "user": ["x", "y"]})
        state.merge(visits, on="page", how={"users": ("count_distinct", "user")})
        await backend.checkpoint(1)
        return int(state["a"]["users"])


def sketches() -> None:
    """Distinct values are counted."""
    assert asyncio.run(count_users(here("sketches"))) == 2


def rocksdb() -> None:
    """State lies in RocksDB."""
    home = Path.cwd()
    primary = f"file://{home}/primary"
    asyncio.run(count(sb.Settings(job="rocksdb", primary=primary, table="rocksdb", table_dir=str(home))))


def command() -> None:
    """A page is drawn."""
    settings = here("cli")
    asyncio.run(count(settings))
    words = ["report", "--job", settings.job, "--primary", settings.primary, "--picture", "page.svg"]
    with redirect_stderr(StringIO()) as told:
        assert cli.main(words) == 0, told.getvalue()
    assert Path("page.svg").exists()


def delta() -> None:
    """A state is mirrored into a table."""
    settings = here("delta")
    asyncio.run(count(settings))
    report = asyncio.run(sb.mirror_once(settings, sb.Mirror("clicks", to=f"delta:{Path.cwd()}/table")))
    assert report.rows == 1


def iceberg() -> None:
    """The target is made. Its catalog is whatever the user has."""
    sb.mirrors.IcebergTarget("web.clicks")


def postgres() -> None:
    """The target is made, and libpq found."""
    sb.mirrors.PostgresTarget("postgresql://localhost/db", "clicks")


def otel() -> None:
    """The observer is made."""
    observers.OpenTelemetryObserver(job="j")


def prometheus() -> None:
    """The observer is made."""
    observers.PrometheusObserver(job="j")


def spark() -> None:
    """The sink is made. `nox -s compat` runs it."""
    sb.spark.StatefulSink(lambda *_: None, here("spark"))


def testing() -> None:
    """The kits are there, and the tester of processors."""
    testing = importlib.import_module("statebackend.testing")
    assert hasattr(testing, "ProcessorTester")


USES: Final[Mapping[str, Callable[[], None]]] = {
    "azure": azure,
    "columns": columns,
    "sketches": sketches,
    "rocksdb": rocksdb,
    "cli": command,
    "delta": delta,
    "iceberg": iceberg,
    "otel": otel,
    "postgres": postgres,
    "prometheus": prometheus,
    "spark": spark,
    "testing": testing,
}

BROUGHT: Final[Mapping[str, frozenset[str]]] = {"iceberg": frozenset({"cli"})}
"""What works besides with an extra, because a library of it installs as much itself: pyiceberg has rich."""


def included(extra: str) -> set[str]:
    """The extras of which all that they install is installed by this one, by the package's own metadata."""
    return {each for each in USES if installed_by(each) <= installed_by(extra)} if extra else set()


def installed_by(extra: str) -> set[str]:
    """The requirements of an extra."""
    requirements = (each.partition(";") for each in importlib.metadata.requires(PACKAGE) or ())
    return {library.strip() for library, _, when in requirements if f"'{extra}'" in when.replace('"', "'")}


def wrong(name: str, use: Callable[[], None], *, installed: bool) -> str:
    """What is wrong with this use, empty if nothing is."""
    try:
        use()
    except Exception as error:  # noqa: BLE001  # which it is, is the question
        if installed:
            return f"{name} is installed, and fails: {error!r}"
        named = any(f"pip install '{PACKAGE}[{each}]'" in str(error) for each in included(name))
        return "" if named else f"{name} is not named by {error!r}"
    return "" if installed else f"{name} works without its extra"


def main() -> None:
    """Raise `AssertionError` at the end if anything is wrong."""
    extra = sys.argv[1] if len(sys.argv) > 1 else ""
    installed = included(extra) | BROUGHT.get(extra, frozenset())
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        found = [wrong(name, use, installed=name in installed) for name, use in USES.items()]
    assert not any(found), "\n".join(filter(None, found))
    works = ", ".join(sorted(installed)) or "no extra"
    print(f"{PACKAGE}[{extra}]: {works} works, and the others say what to install")


if __name__ == "__main__":
    main()
