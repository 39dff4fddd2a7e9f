"""Closes the copies of a processor when their state is closed: their own `close`, in bounded time, and come what may.

By then the batch is decided, so what `close` raises is logged and changes nothing.
"""

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Final

import anyio

from statebackend._processing.processor import KeyedProcessor, overrides
from statebackend._state.forgotten import Forgotten
from statebackend.errors import SettingsError

CLOSE_WITHIN_S: Final = 10.0
"""How long an asynchronous `close` may take. Then it is cancelled, and what it held is left to the process's end."""
_STATES: Final = ("statebackend._state.", "statebackend._processing.own_state")
"""Where the states come from that a context declares."""
_logger = logging.getLogger(__name__)

OnLoop = Callable[[Callable[[], Awaitable[Any]]], Any]
"""Runs a coroutine function on a loop, from another thread: returns or raises its outcome."""


def check_close(processor: KeyedProcessor) -> None:
    """Raise `SettingsError` for a `close` that yields: nothing would run it."""
    function = getattr(type(processor), "close")  # noqa: B009  # of the class, which may not have it by its type
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise SettingsError("close puts nothing out, so it cannot yield", processor=type(processor))


def close_copies(processors: Iterable[KeyedProcessor], *, is_async: bool, on_loop: OnLoop | None) -> None:
    """Call `close` of each, one after the other: on the loop if it or `process` is asynchronous, otherwise here.

    Without `on_loop`, what needs the loop is logged and not called. Raises nothing but what interrupts this thread.
    """
    for processor in processors:
        if not overrides(processor, "close"):
            continue
        _forget_states(processor)
        try:
            if not is_async and not inspect.iscoroutinefunction(type(processor).close):
                processor.close()
            elif on_loop is None:
                _logger.warning("%s was not closed: there is no loop to close it on", type(processor).__name__)
            else:
                on_loop(partial(_close_on_loop, processor))
        except Exception:
            _logger.warning("%s did not close cleanly", type(processor).__name__, exc_info=True)


def _forget_states(processor: KeyedProcessor) -> None:
    """Make a use of the processor's states raise: a range on an executor would commit it, the driver would not."""
    attributes = processor.__dict__
    for name, value in attributes.items():
        if type(value).__module__.startswith(_STATES):
            attributes[name] = Forgotten()


async def _close_on_loop(processor: KeyedProcessor) -> None:
    with anyio.move_on_after(CLOSE_WITHIN_S) as scope:
        if inspect.isawaitable(closing := processor.close()):
            await closing
    if scope.cancelled_caught:
        _logger.warning("%s did not close within %g s", type(processor).__name__, CLOSE_WITHIN_S)
