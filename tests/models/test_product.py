"""Every table with every codec on every store: what one owner writes comes back to several, and the other way round."""

from collections.abc import Generator
from typing import get_args

import pytest

from statebackend.settings import Compression, TableKind
from tests.models.coming_back import assert_comes_back
from tests.models.places import InMemory, OnDisk, Places

TABLES: tuple[TableKind, ...] = get_args(TableKind)
CODECS: tuple[Compression, ...] = get_args(Compression)


@pytest.fixture(params=[InMemory, OnDisk])
def places(request: pytest.FixtureRequest) -> Generator[Places]:
    places: Places = request.param()
    yield places
    places.remove()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("table", TABLES)
async def test_every_kind_comes_back(places: Places, table: TableKind, codec: Compression) -> None:
    """From memory, and from files."""
    if table == "rocksdb":
        pytest.importorskip("rocksdict", reason="the extra rocksdb")
    await places.begin()
    await assert_comes_back(places, table, codec)
    await places.end()
