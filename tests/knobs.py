"""Settings in one line: `upload__timeout_s=0` is `upload.timeout_s`, as in the environment."""

from typing import Any

import msgspec

from statebackend import Settings


def settings_with(**values: Any) -> Settings:
    """Settings of these values."""
    return Settings.from_mapping({name.replace("__", "."): value for name, value in values.items()})


def replaced(settings: Settings, **changes: Any) -> Settings:
    """The same settings, but for these."""
    records: dict[str, dict[str, Any]] = {}
    for name in [name for name in changes if "__" in name]:
        record, field = name.split("__")
        records.setdefault(record, {})[field] = changes.pop(name)
    for record, fields in records.items():
        changes[record] = msgspec.structs.replace(getattr(settings, record), **fields)
    return msgspec.structs.replace(settings, **changes)
