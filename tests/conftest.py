"""What holds for every test: none of them goes by the clock of the machine, and several processes share them well."""

import gc
import logging
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import settings

# By default an example may take 0.2 s. That is plenty, until others keep the machine busy.
settings.register_profile("on any machine", deadline=None)
settings.load_profile("on any machine")


def pytest_collection_finish() -> None:
    """What was collected stays to the end: the cyclic collector need not go through it again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each process the files that suit it: `tests/order.py`."""
    from tests.order import scheduling  # noqa: PLC0415  # the processes themselves have no use for it

    return scheduling(config, log)


@pytest.fixture
def quiet() -> Generator[None]:
    """For tests in which hundreds of things go wrong on purpose: no warning is kept, no traceback formatted."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)
