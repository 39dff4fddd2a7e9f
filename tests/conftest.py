"""What holds for every test: none goes by the clock of the machine or hangs for ever, and processes share them well."""

import asyncio
import gc
import logging
import signal
from collections.abc import Generator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import settings

# By default an example may take 0.2 s. That is plenty, until others keep the machine busy.
settings.register_profile("on any machine", deadline=None)
settings.load_profile("on any machine")


def pytest_configure(config: pytest.Config) -> None:
    """Let PySpark 4.0 leave its sockets to the collector, as it says it does. Later releases close them."""
    found = find_spec("pyspark")
    if found is not None and found.origin is not None:
        util = Path(found.origin).with_name("util.py").read_text(encoding="utf-8")
        if "automatically closed when garbage-collected" in util:
            config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")


def pytest_collection_finish() -> None:
    """What was collected stays to the end: the cyclic collector need not go through it again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each process the files that suit it: `tests/order.py`."""
    from tests.order import scheduling  # noqa: PLC0415  # the processes themselves have no use for it

    return scheduling(config, log)


AGAIN_S: Final = 60.0
_LIMIT: Final = pytest.StashKey[Any]()


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Generator[None, bool, bool]:
    """Fail a test that hangs once and again, until it ends: a busy event loop may swallow one failure.

    pytest-timeout raises it by a signal, in the main thread, and shows the threads. The tasks of a loop are shown too.
    """
    item.stash[_LIMIT] = settings
    is_set = yield
    fail: Any = signal.getsignal(signal.SIGALRM)

    def show_tasks_and_fail(number: int, frame: Any) -> None:
        from statebackend.testing.virtual_time import _list_tasks  # noqa: PLC0415  # seldom wanted

        with suppress(RuntimeError):  # no loop is running here
            item.add_report_section("call", "tasks", _list_tasks(asyncio.get_running_loop()))
        fail(number, frame)

    signal.signal(signal.SIGALRM, show_tasks_and_fail)
    signal.setitimer(signal.ITIMER_REAL, settings.timeout, AGAIN_S)
    return is_set


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Limit what a test leaves behind, too: pytest-timeout does not go on counting when a test has failed."""
    if (settings := item.stash.get(_LIMIT, None)) is not None:
        item.ihook.pytest_timeout_set_timer(item=item, settings=settings)
    return (yield)


@pytest.fixture
def quiet() -> Generator[None]:
    """For tests in which hundreds of things go wrong on purpose: no warning is kept, no traceback formatted."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)
