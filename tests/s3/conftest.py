"""A server that speaks S3 for the whole run, and a bucket for each who asks.

Which server: MiniStack where `MINISTACK_PYTHON` says where its interpreter is, Ceph's radosgw where `CEPH_ROOT` says
where its packages are unpacked. `nox -s tests` sees to the first, `nox -s integration` to both, one after the other.
"""

import asyncio
import itertools
import os
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from benchmarks.radosgw import CEPH_ROOT, run_radosgw
from benchmarks.servers import MINISTACK_PYTHON, Server, make_bucket, run_ministack
from statebackend import Settings
from tests.cloud.http_proxy import FaultProxy
from tests.cloud.proxies import proxy_to
from tests.knobs import replaced
from tests.s3.clients import settings_for

ABSENT = f"no S3 to test against: neither {MINISTACK_PYTHON} nor {CEPH_ROOT} is set; `nox -s tests` sets it"
_numbers = itertools.count()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    directory = tmp_path_factory.mktemp("s3")
    if root := os.environ.get(CEPH_ROOT):
        running = run_radosgw(Path(root).absolute(), directory)
    elif python := os.environ.get(MINISTACK_PYTHON):
        running = run_ministack(python, directory / "ministack.log")
    else:
        pytest.skip(ABSENT)
    with running as server:
        yield server


@pytest.fixture(scope="module")
def bucket(server: Server) -> str:
    """The name of a bucket for all tests of a module."""
    name = f"bucket-{next(_numbers)}"
    asyncio.run(make_bucket(server, name))
    return name


@pytest.fixture
def settings(server: Server, bucket: str) -> Settings:
    """A job below a prefix that no other test has."""
    return settings_for(server, bucket, prefix=f"{next(_numbers)}/of/many")


@pytest.fixture
def any_keys(server: Server) -> None:
    """Only on a server that takes keys which nobody has told it of."""
    if server.name != "MiniStack":
        pytest.skip("this server checks keys, and does not know those that the test makes up")


@pytest.fixture
async def proxy(server: Server) -> AsyncGenerator[FaultProxy]:
    """A way to the server on which there may be trouble."""
    async with proxy_to(server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def by_proxy(settings: Settings, proxy: FaultProxy) -> Settings:
    """The same job, which goes that way, and gives up early."""
    return replaced(settings, s3__endpoint=proxy.endpoint, upload__retry_delay_s=0.01)
