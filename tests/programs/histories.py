"""The history of a key, against what the dictionaries held at each commit: every value, and since which commit."""

from typing import TYPE_CHECKING, Any

import msgspec

import statebackend as sb
from statebackend._codec.messagepack import decode_any
from statebackend._codec.plain import plain
from tests.programs.dictionaries import Dictionaries
from tests.programs.looking import check
from tests.programs.program import Declared
from tests.programs.surroundings import attend
from tests.programs.values import KEYS

if TYPE_CHECKING:
    from tests.programs.running import Running

NONE = "null"


def look_at_history(running: "Running", number: int) -> None:
    """Of one key of one state; now and then since a moment. What has expired is there as long as it is stored."""
    readers = running.readers()
    if not (states := readers.known(running.held, readers.keyed)):
        return
    declared = states[number % len(states)]
    keys = KEYS[running.program.keys]
    key = keys[number // len(states) % 3]
    line = [each.checkpoint_id for each in running.line]
    first = line[number % len(line)] if number % 3 == 2 else None
    since = None if first is None else running.moments[first]
    found = attend(sb.history_of(running.settings, declared.name, key, since=since))
    values = _chain(declared, found)
    if first is None and not running.is_swept:
        check(f"history of {declared.name} is whole", found.is_whole, True)
    if first is not None and not running.is_swept:
        check(f"history of {declared.name} since", found.checkpoint_id, first)
    if declared.ttl_s is not None:
        newest = attend(_newest(running, declared, key))
        check(f"newest of the history of {declared.name}", _value_at(values, line[-1]), newest)
        return
    for checkpoint_id in line:
        if checkpoint_id >= found.checkpoint_id:
            held = running.kept[checkpoint_id]
            expected = _stored(declared, held, key)
            check(f"history of {declared.name} at {checkpoint_id}", _value_at(values, checkpoint_id), expected)


def _chain(declared: Declared, found: Any) -> dict[int, str]:
    """By checkpoint, oldest first, the values that a history tells. Each must begin with what the one before ends."""
    values = {-1 if found.is_whole else found.checkpoint_id: _text(declared, found.value)}
    for change in reversed(found.changes):
        *_, last = values.values()
        check(f"value of {declared.name} before {change.checkpoint_id}", _text(declared, change.before), last)
        check(f"states of {change.checkpoint_id}", declared.name in change.states, True)
        values[change.checkpoint_id] = _text(declared, change.after)
    check(f"order of the history of {declared.name}", list(values), sorted(values))
    return values


def _value_at(values: dict[int, str], checkpoint_id: int) -> str:
    *_, found = (value for at, value in values.items() if at <= checkpoint_id)
    return found


async def _newest(running: "Running", declared: Declared, key: sb.Key) -> str:
    async with sb.read_rows(running.settings, states=[declared.name], key=key) as rows:
        return _text(declared, next((row.value for row in rows), None))


def _stored(declared: Declared, held: Dictionaries, key: sb.Key) -> str:
    """What a commit has under the key, as text."""
    if declared.name not in held.known or not held.is_there(declared, key):
        return NONE
    found = held.visible(declared, key)
    if declared.kind == "map":
        return _text(declared, [(_plain(cell.name), _plain(cell.value)) for cell in found.values()])
    return _text(declared, _plain(found))


def _plain(value: Any) -> Any:
    """The value as JSON has it, without its class."""
    return plain(decode_any(msgspec.msgpack.encode(value)))


def _text(declared: Declared, value: Any) -> str:
    if value is None:
        return NONE
    if declared.kind == "map":
        pairs = value.items() if isinstance(value, dict) else value
        return str(sorted([_json(name), _json(each)] for name, each in pairs))
    return _json(sorted(value) if declared.kind == "timers" else value)


def _json(value: Any) -> str:
    """Fields have no order: a value that was read with others has them in that of their common type."""
    return msgspec.json.encode(value, order="sorted").decode()
