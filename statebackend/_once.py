"""Logs once what would otherwise be logged for each file: a disk that fails does so for every one of them."""

import logging
from collections.abc import Hashable
from typing import Final

from statebackend.errors import StateBackendError

REASONS_MAX: Final = 1024
"""Most reasons remembered. They are few, unless errors of foreign code have texts of their own."""


class OnceLog:
    """Warns once for each subject and reason. For one event loop."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._said: set[tuple[Hashable, Hashable]] = set()

    def warning(self, subject: Hashable, reason: Hashable, message: str, *args: object) -> None:
        """Log `message`, unless something was logged of this subject for this reason."""
        if (subject, reason) not in self._said and len(self._said) < REASONS_MAX:
            self._said.add((subject, reason))
            self._logger.warning(message, *args)


def reason_of(error: BaseException) -> Hashable:
    """The part of an error that is the same for each file; its facts name the file."""
    cause = error if isinstance(error, OSError) and error.errno is not None else error.__cause__
    number = cause.errno if isinstance(cause, OSError) else None
    return type(error), error.message if isinstance(error, StateBackendError) else str(number or error), number
