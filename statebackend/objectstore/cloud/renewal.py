"""Credentials that end: asked of the user's function before they do, by one request for all that wait.

While they are good, a renewal that fails costs nothing but a warning. Once they are not, it is like an outage of the
store: repeated for `outage_s`.
"""

import asyncio
import inspect
import logging
from collections import OrderedDict
from typing import Any, Final, Generic, TypeVar, cast
from weakref import WeakKeyDictionary

import anyio

from statebackend._threads import FileThreads
from statebackend.abc import Clock
from statebackend.abc.clock import SystemClock
from statebackend.errors import SettingsError, StoreAccessError, StoreUnavailableError
from statebackend.settings.credentials import AzureCredentials, CredentialSource, S3Credentials

C = TypeVar("C", S3Credentials, AzureCredentials)

RENEW_BEFORE_S: Final = 300.0
"""How long before their end credentials are renewed; or when a third of their time is left, if that is shorter."""
RENEW_AGAIN_S: Final = 5.0
"""The pause after a renewal that failed while the credentials were still good."""
RENEW_WITHIN_S: Final = 30.0
"""How long the function may take."""
SOURCES_MAX: Final = 16
"""Functions whose credentials are kept, on a loop."""

_logger = logging.getLogger(__name__)
_renewals: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, OrderedDict[Any, "Renewal[Any]"]]] = WeakKeyDictionary()


def renewal_of(source: CredentialSource, kind: type[C]) -> "Renewal[C]":
    """The renewal that all stores on this loop share which have credentials of that source."""
    known = _renewals.setdefault(asyncio.get_running_loop(), OrderedDict())
    found = known.get((source, kind))
    if found is None:
        found = known[source, kind] = Renewal(source, kind)
    known.move_to_end((source, kind))
    while len(known) > SOURCES_MAX:
        known.popitem(last=False)
    return found


class Renewal(Generic[C]):
    """Holds the newest credentials of the kind `kind` from `source`."""

    def __init__(self, source: CredentialSource, kind: type[C], *, clock: Clock | None = None) -> None:
        self._source = source
        self._kind: type[Any] = kind
        self._clock = clock or SystemClock()
        self._threads = FileThreads(1)
        self._lock = anyio.Lock()
        self._held: C | None = None
        self._due_s = 0.0
        self._is_good = False

    async def current(self) -> C:
        """The credentials, renewed if that is due. One caller asks, the others wait for the answer.

        Raises `StoreUnavailableError` if there are none that are good, `StoreAccessError` for what are none at all, and
        `SettingsError` if the function cannot be found.
        """
        if (held := self._now()) is not None:
            return held
        async with self._lock:
            if (held := self._now()) is not None:
                return held
            return await self._renewed()

    def refuse(self, refused: C) -> None:
        """Note that the store says of these that they have ended, whatever was promised."""
        if refused is self._held:
            self._is_good = False

    def _now(self) -> C | None:
        return self._held if self._is_good and self._clock.time() < self._due_s else None

    async def _renewed(self) -> C:
        began_s = self._clock.time()
        try:
            with anyio.fail_after(RENEW_WITHIN_S):
                found = await self._ask()
        except (SettingsError, StoreAccessError):
            raise
        except Exception as error:
            held = self._held
            if self._is_good and held is not None and self._clock.time() < held.ends_at_s:
                _logger.warning("credentials could not be renewed, and are good for some time yet", exc_info=True)
                self._due_s = min(held.ends_at_s, self._clock.time() + RENEW_AGAIN_S)
                return held
            raise StoreUnavailableError("the function gave no credentials", error=type(error).__name__) from error
        left_s = found.ends_at_s - began_s
        if left_s <= 0:
            raise StoreUnavailableError("the function gave credentials that have ended", ended_s_ago=-left_s)
        self._held, self._is_good = found, True
        self._due_s = found.ends_at_s - min(RENEW_BEFORE_S, left_s / 3)
        return found

    async def _ask(self) -> C:
        function = self._source.function()
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
            found: Any = await function()
        else:
            found = await self._threads.io(function, abandon_after_s=0.0)
            if inspect.isawaitable(found):
                found = await found
        if not isinstance(found, self._kind):
            raise StoreAccessError(
                f"the function for credentials must return {self._kind.__name__}", returned=type(found).__name__
            )
        return cast("C", found)
