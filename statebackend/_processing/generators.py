"""Notices asynchronous generators that calls of `process` leave half way: begun, and dropped without an end.

Python has no way to close one where it is dropped. The event loop does it later, in a task of its own: what the
generator has still to do then runs when its call has ended, perhaps after the commit.

A generator that another one iterates belongs to that one, which may be a library's: only if that is `process` itself,
it is noticed.
"""

import inspect
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from typing import Any, Final

from statebackend._processing.calls import Turns, current_call
from statebackend.errors import InputError
from statebackend.ids import Key


@contextmanager
def noticing_left_generators() -> Generator[None, None, None]:
    """In this context, which runs on a loop, generators that calls leave half way break the `Turns` of their batch.

    Also those that are dropped after it. For batches that overlap on the loop.
    """
    hooks = sys.get_asyncgen_hooks()
    watch = getattr(hooks.firstiter, "__self__", None)
    if not isinstance(watch, _Watch):
        watch = _Watch(hooks)
        sys.set_asyncgen_hooks(watch.begun, watch.dropped)
    watch.batches += 1
    try:
        yield
    finally:
        watch.batches -= 1
        if not watch.batches:
            sys.set_asyncgen_hooks(*watch.of_loop)


class _Watch:
    """The generators that calls have begun on one loop, beside the loop's own hooks."""

    def __init__(self, of_loop: Any) -> None:
        self.of_loop: Final = of_loop
        self.batches = 0
        self._begun: Final[dict[int, tuple[Turns, Key]]] = {}  # by `id`: no weak reference lasts until one is dropped

    def begun(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Python's hook: somebody asks it for its first item."""
        # A frame that is kept would keep the generator.
        call, by = current_call(), sys._getframe(1).f_code  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        if call is None or (by.co_flags & inspect.CO_ASYNC_GENERATOR and by.co_name != "process"):
            self._begun.pop(id(generator), None)
        else:
            self._begun[id(generator)] = call.batch.turns, call.key
        if self.of_loop.firstiter is not None:
            self.of_loop.firstiter(generator)

    def dropped(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Python's hook: nobody refers to it any more, and it has not ended. Called in any thread; must not raise."""
        if (of_call := self._begun.pop(id(generator), None)) is not None:
            turns, key = of_call
            turns.break_by(
                InputError(
                    "an asynchronous generator was left half way, and would be closed at any time after the call: "
                    "iterate it to its end, or use it within `async with contextlib.aclosing(...)`",
                    key=key,
                    generator=getattr(generator, "__qualname__", ""),
                )
            )
        if self.of_loop.finalizer is not None:
            self.of_loop.finalizer(generator)
