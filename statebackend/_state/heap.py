"""A state's entries in a plain dictionary: encoded values under the user's own keys.

Values are kept encoded for two reasons. The collector does not track bytes, so a million entries cost it nothing; and
every read decodes a fresh object, so that a value changed in place after `get` cannot make memory and log differ.
"""

from collections.abc import Iterable, Iterator

from statebackend._codec.records import Operation, StateChange, key_of
from statebackend.errors import UnsupportedVersionError
from statebackend.ids import Key

HeapTable = dict[Key, bytes]


def apply(table: HeapTable, change: StateChange) -> None:
    """Replay one change. Live writes leave the table as their replay would.

    Raises `UnsupportedVersionError` for an operation that this release does not know.
    """
    if change.operation == Operation.SET:
        table[key_of(change)] = change.data
    elif change.operation == Operation.CLEAR:
        table.pop(key_of(change), None)
    else:
        raise UnsupportedVersionError("a change of a newer release", operation=change.operation)


def entries(table: HeapTable, state_id: int, group: int, keys: Iterable[Key]) -> Iterator[StateChange]:
    """Changes that rebuild the entries of `keys`, all of one key group."""
    for key in keys:
        yield StateChange(group, Operation.SET, state_id, key, table[key])
