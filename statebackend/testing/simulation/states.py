"""The states of a simulated job: two value states of text, and a columnar state of one column of text."""

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, Final

from statebackend._checkpoint.backend import KeyedBackend
from statebackend._columns.arrow import pa
from statebackend.ids import Key

COLUMNS: Final = "columns"
STATES: Final = ("first", "second", COLUMNS)


def states_of(backend: KeyedBackend, names: Sequence[str] = STATES) -> Mapping[str, MutableMapping[Key, Any]]:
    """The states of these names."""
    return {name: _columns(backend) if name == COLUMNS else backend.value_state(name, str) for name in names}


def key_in(name: str, key: Key) -> Key:
    """The key as the state of this name has it: in columns, all keys are of one type."""
    return key if name != COLUMNS or isinstance(key, str) else repr(key)


def value_in(name: str, text: str) -> object:
    """The text as a value of the state of this name."""
    return text if name != COLUMNS else {"text": text}


def _columns(backend: KeyedBackend) -> MutableMapping[Key, Any]:
    return backend.columnar_state(COLUMNS, pa.schema({"text": pa.string()}), key=pa.string())
