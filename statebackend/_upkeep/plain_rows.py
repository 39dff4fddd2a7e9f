"""Reads a checkpoint's state in plain values, without the classes that it was written with.

What msgspec wrote is decoded as MessagePack: a struct becomes a dict. What a user's own serializer wrote stays bytes.
Values are shown as they are stored: no upcast is applied, and an expired value is shown until it is dropped.
"""

import importlib
import struct
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import chain, groupby
from typing import Any, Final

import msgspec
import numpy as np

from statebackend._codec.cells import split, unpack
from statebackend._codec.change_sets.changes import Changes
from statebackend._codec.change_sets.keyed_changes import KeyedChanges
from statebackend._codec.commit import Commit
from statebackend._codec.messagepack import decode_any
from statebackend._codec.plain import key_of_shown, plain
from statebackend._codec.serializers import OWN
from statebackend._log.moments import Moment
from statebackend._state.declared import COLUMNAR
from statebackend._state.kinds import list_state, map_state
from statebackend._state.kinds.operator_state import mode_of
from statebackend._state.time import timers
from statebackend._tables.key_groups import key_group
from statebackend._upkeep.job_primary import open_job_primary
from statebackend._upkeep.progress import Tell, reading
from statebackend._upkeep.read_commit import open_commit, operator_elements
from statebackend.abc import ObjectStore
from statebackend.abc.clock import SystemClock
from statebackend.errors import InputError, ValueDecodeError
from statebackend.ids import Key, KeyGroupRange, StateDescriptor, all_key_groups
from statebackend.settings import Settings

_TIME_BYTES: Final = 8


class Row(msgspec.Struct, frozen=True):
    """One key of one state, in values that JSON has; bytes are `{"base64": ...}`, a tuple is an array, and a float that
    is not finite is the text "NaN", "Infinity" or "-Infinity".

    `value` is an array for a list, the times of the key for timers, the accumulator for an aggregating state. A map is
    an object if all of its keys are strings, otherwise an array of pairs. A row of columns is an object; a date or time
    in it is text as in ISO 8601, a duration a number of seconds, a decimal text. For operator state, `key` and
    `key_group` are `None`, and `value` holds the elements that one owner of the whole job would have.
    """

    state: str
    kind: str
    key: Any
    key_group: int | None
    value: Any


@asynccontextmanager
async def read_rows(
    settings: Settings,
    *,
    checkpoint_id: int | None = None,
    savepoint: str | None = None,
    at: Moment | None = None,
    states: Sequence[str] = (),
    key: Key | None = None,
    store: ObjectStore | None = None,
    tell: Tell = lambda _: None,
) -> AsyncGenerator[Iterator[Row]]:
    """Read the state in plain values: of the newest checkpoint, of `checkpoint_id`, `savepoint`, or `at` a moment.

    The rows come in the order of their key groups, operator state last. `states` and `key` narrow them down; with a
    key, operator state is left out. Entering the context reads everything that the rows need into a table of the kind
    that `settings.table` names, and calls `tell` on the loop after each file; the rows are good until the context is
    left. Local copies are read first. Nothing is written, and nobody is fenced.

    Raises `InputError` if the job has no checkpoint, or that checkpoint no state of such a name, and as `open_backend`.
    """
    clock = SystemClock()
    async with open_job_primary(settings, store) as primary:
        commit, body = await primary.find(checkpoint_id=checkpoint_id, savepoint=savepoint, at=at)
        wanted, groups = _wanted_states(commit, states), all_key_groups(commit.max_parallelism)
        if key is not None:
            key = wanted_key = key_of_shown(key)
            groups = KeyGroupRange(group := key_group(wanted_key, commit.max_parallelism), group)
        settings = msgspec.structs.replace(settings, max_parallelism=commit.max_parallelism)
        opening = open_commit(settings, primary.store, wanted, at_hand=body, threads=primary.threads, clock=clock)
        async with opening as (tables, restore):
            ids = frozenset(state.state_id for state in wanted)

            def apply(changes: Sequence[Changes]) -> frozenset[int]:
                chosen = [each for each in changes if each.state_id in ids]
                return tables.replay(chosen if key is None else of_key(chosen, key))

            await restore.run(commit, groups, apply, reading(commit, tell))
            placed = tables.snapshot().placed(frozenset(groups))
            keyed = keyed_rows(placed.changes(list(groups), one_by_one=True), wanted)
            yield keyed if key is not None else chain(keyed, _operator_rows(commit, wanted))


def of_key(changes: Iterable[Changes], key: Key) -> Iterator[Changes]:
    """The changes of this key."""
    for each in changes:
        keys = keys_in(each)
        if places := [place for place, found in enumerate(keys) if found == key]:
            yield each.taken(np.array(places, dtype=np.intp))


def keys_in(changes: Changes) -> Sequence[Key]:
    """The key of each change."""
    return changes.keys if isinstance(changes, KeyedChanges) else _columns().keys_in(changes)


def keyed_rows(changes: Iterable[Changes], states: Sequence[StateDescriptor]) -> Iterator[Row]:
    """A row for each key of each state. The changes that rebuild one key of one state follow each other.

    Raises `ValueDecodeError` for a value that is not MessagePack.
    """
    described = {state.state_id: state for state in states}
    for state_id, parts in groupby(changes, key=lambda each: each.state_id):
        state = described[state_id]
        if state.kind == COLUMNAR:
            for group, key, row in chain.from_iterable(map(_columns().rows_in, parts)):
                yield Row(state.name, state.kind, plain(key), group, plain(row))
            continue
        rows = chain.from_iterable(each.rows() for each in parts if isinstance(each, KeyedChanges))
        for key, own in groupby(rows, key=lambda change: change.key):
            together = list(own)
            value = _value(state, [change.data for change in together])
            yield Row(state.name, state.kind, plain(key), together[0].key_group, value)


def _columns() -> Any:
    """The module that reads columns, which needs an extra."""
    return importlib.import_module("statebackend._state.columnar.plain_columns")


def _operator_rows(commit: Commit, states: Iterable[StateDescriptor]) -> Iterator[Row]:
    """A row for each operator state among these."""
    for state in states:
        if mode_of(state.kind) is not None:
            decode = _decoder_of(state.schema)
            yield Row(state.name, state.kind, None, None, list(map(decode, operator_elements(commit, state))))


def _wanted_states(commit: Commit, names: Sequence[str]) -> Sequence[StateDescriptor]:
    """The states of these names, or all without names. Raises `InputError` for a name that the commit does not have."""
    known = {state.name: state for state in commit.states}
    if unknown := [name for name in names if name not in known]:
        raise InputError("the checkpoint has no state of that name", state=unknown[0], known=", ".join(sorted(known)))
    return [known[name] for name in dict.fromkeys(names)] if names else commit.states


def _value(state: StateDescriptor, data: Sequence[bytes]) -> Any:
    """The plain value. `data` holds the parts of a list or the entries of a map; for every other kind, one value."""
    decode = _decoder_of(state.schema)
    if state.kind == timers.KIND:
        return plain(struct.unpack(f"<{len(data[0]) // _TIME_BYTES}d", data[0]))
    if state.kind == list_state.KIND:
        return [decode(cell) for cell in split(b"".join(data))]  # a part may end in the middle of an element
    if state.kind == map_state.KIND:
        decode_key = _decoder_of(state.key_schema)
        entries = [(decode_key(entry_key), decode(cell)) for entry_key, cell in map(split, data)]
        return dict(entries) if all(type(key) is str for key, _ in entries) else entries
    return decode(data[0])


def _decoder_of(schema: str) -> Callable[[bytes], Any]:
    """Return what turns a cell of this schema into a plain value."""
    if schema.startswith(OWN):
        return lambda cell: plain(unpack(cell).value)
    return lambda cell: plain(_decoded(unpack(cell).value))


def _decoded(data: bytes) -> Any:
    try:
        return decode_any(data)
    except (ValueError, RecursionError) as error:
        raise ValueDecodeError(f"a stored value is not MessagePack: {error}", size_bytes=len(data)) from error
