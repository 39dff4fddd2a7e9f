"""The half of a backend that user code runs with: it declares states here, as long as the backend is of any use."""

from collections.abc import Generator
from contextlib import contextmanager

from statebackend._state.declared import KeyedStates, StateDeclarations
from statebackend.errors import BackendClosedError, InputError


class DeclaresStates(StateDeclarations):
    """Every kind of state by name. Each method raises `BackendClosedError` once the backend has failed or is closed."""

    def __init__(self, states: KeyedStates) -> None:
        self._states = states
        self._failure: Exception | None = None
        self._closed = False

    @property
    def is_usable(self) -> bool:
        """Whether it is neither closed nor has failed."""
        return self._failure is None and not self._closed

    def _declaring(self) -> KeyedStates:
        self._check_usable()
        return self._states

    @contextmanager
    def _failing(self) -> Generator[None, None, None]:
        """An error in here that is not the caller's ends the use of this backend."""
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            self._failure = error
            raise

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise BackendClosedError("the backend has failed: open a new one") from self._failure
        if self._closed:
            raise BackendClosedError("the backend is closed: open a new one")
