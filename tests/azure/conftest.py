"""Azurite for the whole run, and a container for each module.

`AZURITE_ROOT` says where it is installed; `nox -s tests` sees to it where there is npm.
"""

import asyncio
import itertools
import os
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from statebackend import Settings

pytest.importorskip("azure.storage.blob", reason="no extra `azure`")

from benchmarks.azurite import AZURITE_ROOT, Azurite, make_container, run_azurite
from tests.azure.clients import settings_for
from tests.cloud.http_proxy import FaultProxy
from tests.cloud.proxies import proxy_to
from tests.knobs import replaced

ABSENT = f"no Azure to test against: {AZURITE_ROOT} is not set; `nox -s tests` sets it where there is npm"
_numbers = itertools.count()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Azurite]:
    root = os.environ.get(AZURITE_ROOT)
    if not root:
        pytest.skip(ABSENT)
    with run_azurite(Path(root).absolute(), tmp_path_factory.mktemp("azure") / "azurite.log") as server:
        yield server


@pytest.fixture(scope="module")
def container(server: Azurite) -> str:
    """The name of a container for all tests of a module."""
    name = f"container-{next(_numbers)}"
    asyncio.run(make_container(server, name))
    return name


@pytest.fixture
def settings(server: Azurite, container: str) -> Settings:
    """A job below a prefix that no other test has."""
    return settings_for(server, container, prefix=f"{next(_numbers)}/of/many")


@pytest.fixture
async def proxy(server: Azurite) -> AsyncGenerator[FaultProxy]:
    """A way to the server on which there may be trouble."""
    async with proxy_to(server.endpoint.removesuffix(f"/{server.account}")) as proxy:
        yield proxy


@pytest.fixture
def by_proxy(settings: Settings, proxy: FaultProxy, server: Azurite) -> Settings:
    """The same job, which goes that way, and gives up early."""
    endpoint = f"{proxy.endpoint}/{server.account}"
    return replaced(settings, azure__endpoint=endpoint, upload__retry_delay_s=0.01)
