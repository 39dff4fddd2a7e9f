"""The base of the records of settings, which tells a misspelt argument as it would be told in a mapping."""

from typing import TYPE_CHECKING, Any

import msgspec

from statebackend.settings.sources import check_arguments


class _Named(msgspec.StructMeta):
    """Makes records by names that it has checked. msgspec's own error is a bare `TypeError`, and has no advice."""

    if not TYPE_CHECKING:  # type checkers know the names

        def __call__(self, *values: Any, **fields: Any) -> Any:
            check_arguments(self, values, fields)
            return super().__call__(**fields)


class SettingsRecord(msgspec.Struct, metaclass=_Named, frozen=True, kw_only=True):
    """A record of settings, made of arguments with names."""
