"""A Postgres for the tests of a process, started with the first that asks for one."""

import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from benchmarks.servers import ServerError
from benchmarks.upserts.postgres import open_server

SETTINGS = {"listen_addresses": "", "fsync": "off", "shared_buffers": "16MB", "max_wal_size": "128MB"}


@pytest.fixture(scope="session")
def postgres() -> Generator[str]:
    """Where to connect to, as libpq takes it."""
    folder = Path(tempfile.mkdtemp(prefix="pg"))  # the path of a socket has to be short
    try:
        with open_server(folder, SETTINGS) as (where, _):
            yield where
    except ServerError as error:
        pytest.skip(f"NOT TESTED against Postgres: {error}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
