"""A Postgres for one contest: a cluster in a folder, reached by a socket there, set as an expert would for this task.

    python -m benchmarks.upserts.postgres FOLDER    find the server, or unpack it there; status 3 if this machine cannot

The server is the machine's own, or comes from Debian's packages. It refuses to run as root, so root starts it as
another user.
"""

import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import csv

from benchmarks.debian import unpack
from benchmarks.servers import ServerError
from benchmarks.upserts.contestants import UPSERT, Contestant, bytes_of_process, from_rows

POSTGRES_ROOT: Final = "POSTGRES_ROOT"
"""The environment variable that says where the packages are unpacked. `nox -s bench -- upserts` sets it."""
CANNOT_STATUS: Final = 3
PROGRAMS: Final = "usr/lib/postgresql/*/bin"
LIBRARIES: Final = "usr/lib/x86_64-linux-gnu"
START_TIMEOUT_S: Final = 60.0
SETTINGS: Final = {
    "listen_addresses": "",
    "shared_buffers": "2GB",
    "temp_buffers": "64MB",
    "work_mem": "256MB",
    "synchronous_commit": "on",
    "wal_compression": "lz4",
    "max_wal_size": "16GB",  # checkpoints far apart: after each of them, whole pages go to the log
    "checkpoint_timeout": "30min",
    "jit": "off",
}


class Postgres:
    """`COPY` into a temporary table, and `INSERT ... ON CONFLICT` from there, in the order of keys."""

    def __init__(self, connection: Any, server: int) -> None:
        self._connection, self._server = connection, server
        # With room in each page a new version of a row stays in it, and the index does not change.
        connection.execute(
            "CREATE TABLE totals(key text PRIMARY KEY, n bigint, sum bigint, last bigint) WITH (fillfactor = 70)"
        )
        connection.execute("CREATE TABLE mark AS SELECT -1::bigint AS batch")
        connection.execute("CREATE TEMP TABLE new(key text, n bigint, sum bigint, last bigint) ON COMMIT DELETE ROWS")

    def upsert(self, rows: Any, totals: Any) -> None:
        text = pa.BufferOutputStream()
        csv.write_csv(totals, text, csv.WriteOptions(include_header=False))
        with self._connection.transaction(), self._connection.cursor() as cursor:
            with cursor.copy("COPY new FROM STDIN (FORMAT csv)") as copy:
                copy.write(memoryview(text.getvalue()))
            cursor.execute(UPSERT.format(source="SELECT * FROM new ORDER BY key", greatest="greatest"))
            cursor.execute("UPDATE mark SET batch = batch + 1")

    def rest(self) -> None: ...

    def finish(self) -> None:
        self._connection.execute("CHECKPOINT")

    def written_bytes(self) -> int:
        children = Path(f"/proc/{self._server}/task/{self._server}/children").read_text(encoding="ascii").split()
        return sum(bytes_of_process(number) for number in [self._server, *map(int, children)])

    def table(self) -> Any:
        return from_rows(self._connection.execute("SELECT key, n, sum, last FROM totals").fetchall())


@contextmanager
def open_postgres(folder: Path) -> Generator[Contestant]:
    """A new cluster in the folder, which ends with the context. Raises `ServerError` if there is no server."""
    import psycopg  # noqa: PLC0415  # the extra `upserts`, which no other contestant needs

    with (
        open_server(folder, SETTINGS) as (where, server),
        closing(psycopg.connect(where, autocommit=True)) as connection,
    ):
        yield Postgres(connection, server)


@contextmanager
def open_server(folder: Path, settings: Mapping[str, str]) -> Generator[tuple[str, int]]:
    """As `open_postgres`: where to connect to, and the server's process."""
    programs = find_programs(Path(os.environ.get(POSTGRES_ROOT, "/nonexistent")))
    options = _as_another_user(folder) | {"cwd": folder, "env": _variables(programs)}
    initdb = f"{programs}/initdb -D data -U bench --auth=trust --no-sync -E UTF8 --locale=C"
    given = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    with (folder / "log").open("wb") as log:
        options |= {"stdout": log, "stderr": log}
        if subprocess.run(initdb.split(), check=False, **options).returncode != 0:
            raise _failure("initdb failed", folder)
        with subprocess.Popen([f"{programs}/postgres", "-D", "data", "-k", str(folder), *given], **options) as server:
            try:
                _wait(server, folder)
                yield f"host={folder} user=bench dbname=postgres", server.pid
            finally:
                server.send_signal(signal.SIGINT)  # its fast shutdown


def find_programs(root: Path) -> Path:
    """The folder of a server's programs: the machine's newest, or that below `root`. Raises `ServerError`."""
    for place in (Path("/"), root):
        if found := sorted(place.glob(PROGRAMS)):
            return found[-1]
    raise ServerError("there is no Postgres: install Debian's package `postgresql`, or use nox -s bench -- upserts")


def _wait(server: subprocess.Popen[Any], folder: Path) -> None:
    end = time.monotonic() + START_TIMEOUT_S
    ready = folder / "data" / "postmaster.pid"
    while not (ready.exists() and ready.read_text().splitlines()[-1].strip() == "ready"):
        if server.poll() is not None or time.monotonic() > end:
            raise _failure("Postgres does not start", folder)
        time.sleep(0.05)


def _failure(what: str, folder: Path) -> ServerError:
    return ServerError(f"{what}: {(folder / 'log').read_text(errors='replace')[-1000:]}")


def _as_another_user(folder: Path) -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    names = {each.pw_name for each in pwd.getpwall()}
    user = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
    os.chown(folder, user.pw_uid, user.pw_gid)
    folder.parent.chmod(0o711)  # it may pass through
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _variables(programs: Path) -> dict[str, str]:
    return {"PATH": str(programs), "LD_LIBRARY_PATH": str(programs.parents[4] / LIBRARIES), "LC_ALL": "C"}


def main() -> int:
    """Unpack into the folder that is given, if this machine has no server."""
    root = Path(sys.argv[1]).absolute()
    try:
        try:
            find_programs(root)
        except ServerError:
            unpack(root, "postgresql")
    except ServerError as error:
        print(error)
        return CANNOT_STATUS
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
