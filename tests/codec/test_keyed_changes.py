"""Changes in columns: their bytes, their pieces, and what is refused of them."""

import tracemalloc
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend._codec.change_sets.changes import GROUP, Changes
from statebackend._codec.change_sets.keyed_changes import CHANGE_OVERHEAD_BYTES, SET, KeyedChanges, keyed_changes
from statebackend._codec.change_sets.parts import UnknownKindError, decode_parts, encode_parts
from statebackend._codec.change_sets.state_change import Operation, StateChange
from statebackend.errors import ValueDecodeError
from statebackend.ids import KeyGroupRange
from statebackend.settings import KiB
from tests.codec.samples import CHANGES, KEYS
from tests.examples import name_of

ROWS = st.lists(CHANGES, min_size=1, max_size=20)
SAME_ARITY = st.lists(st.tuples(st.text(max_size=3), st.integers(-5, 5)), min_size=1, max_size=9)


def of(*keys: Any, data: bytes = b"data", group: int = 5) -> KeyedChanges:
    """A `SET` of each of these keys, of state 0."""
    (changes,) = keyed_changes(StateChange(group, Operation.SET, 0, key, data) for key in keys)
    return changes


def rows(changes: list[KeyedChanges]) -> list[tuple[object, ...]]:
    """The changes one by one, each key in its own type."""
    return [(*msgspec.structs.astuple(row), repr(row.key)) for each in changes for row in each.rows()]


def decoded(raw: bytes) -> list[KeyedChanges]:
    """The changes in these bytes."""
    return [each for each in decode_parts(raw) if isinstance(each, KeyedChanges)]


@given(ROWS)
def test_changes_come_back_as_they_were(written: list[StateChange]) -> None:
    """Groups, operations, keys in their own types, data, and their order; from columns and from bytes."""
    changes = keyed_changes(written)
    expected = [(*msgspec.structs.astuple(row), repr(row.key)) for row in written]
    assert rows(changes) == expected
    assert rows(decoded(encode_parts(changes))) == expected


@given(SAME_ARITY)
def test_tuples_of_one_length_are_stored_in_columns(keys: list[tuple[str, int]]) -> None:
    """They come back as tuples."""
    (found,) = decoded(encode_parts([of(*keys)]))
    assert list(found.keys) == keys
    assert encode_parts([of(*keys)])[13 + 3] == 2


@given(ROWS, st.lists(st.tuples(st.integers(0, 32_767), st.integers(0, 32_767)), max_size=4))
def test_changes_of_some_groups_are_those_and_no_others(
    written: list[StateChange], ends: list[tuple[int, int]]
) -> None:
    """In their order."""
    wanted = [KeyGroupRange(min(pair), max(pair)) for pair in ends]
    for changes in keyed_changes(written):
        expected = [row for row in changes.rows() if any(row.key_group in each for each in wanted)]
        found = changes.of_groups(wanted)
        assert (list(found.rows()) if found is not None else []) == expected


def test_changes_that_are_all_wanted_are_not_copied() -> None:
    """A restore with the same owner would copy everything for nothing."""
    changes = of("a", "b")
    assert changes.of_groups([KeyGroupRange(0, 127)]) is changes


@given(ROWS, st.integers(0, 200), st.none() | st.integers(0, 200))
def test_pieces_are_the_whole_and_end_where_they_are_full(
    written: list[StateChange], bytes_max: int, first_bytes: int | None
) -> None:
    """Each piece but the last reaches its size with its last change, and not before."""
    for changes in keyed_changes(written):
        pieces = list(changes.cut(bytes_max, first_bytes))
        assert rows(pieces) == rows([changes])
        assert sum(piece.size_bytes for piece in pieces) == changes.size_bytes
        for number, piece in enumerate(pieces[:-1]):
            limit = bytes_max if number or first_bytes is None else first_bytes
            assert piece.size_bytes >= limit
            assert piece.records == 1 or limit > piece.size_bytes - int(piece.sizes()[-1])


def test_a_limit_of_no_bytes_cuts_off_every_change() -> None:
    """As with a threshold of 0 for preemptive persists. No piece is empty."""
    for first_bytes in (None, 0, -1):
        assert [piece.records for piece in of("a", "b", "c").cut(0, first_bytes)] == [1, 1, 1]


@given(st.lists(KEYS, min_size=1, max_size=5), st.binary(max_size=9))
def test_the_estimated_size_is_of_keys_and_data(keys: list[Any], data: bytes) -> None:
    """Text by its characters, a number as eight bytes, a tuple as its parts."""

    def of_key(key: Any) -> int:
        return len(key) if isinstance(key, str | bytes) else sum(map(of_key, key)) if isinstance(key, tuple) else 8

    assert of(*keys, data=data).size_bytes == sum(of_key(key) + len(data) + CHANGE_OVERHEAD_BYTES for key in keys)


def test_groups_far_apart_take_two_bytes_each() -> None:
    """Neighbouring ones, as of one owner of many, take one."""
    near = keyed_changes(StateChange(group, 1, 0, "key", b"") for group in (32_512, 32_767))
    far = keyed_changes(StateChange(group, 1, 0, "key", b"") for group in (0, 32_767))
    assert len(encode_parts(far)) == len(encode_parts(near)) + 2
    assert [each.groups.tolist() for each in decoded(encode_parts([*near, *far]))] == [[32_512, 32_767], [0, 32_767]]


def part(body: bytes, *, kind: int = 1, records: int = 1, length: int | None = None) -> bytes:
    """A part of state 0 with this body."""
    numbers = (0, records, len(body) if length is None else length)
    return bytes([kind]) + b"".join(number.to_bytes(4, "little") for number in numbers) + body


def column(found: object) -> bytes:
    """A column, of values or of bytes that stand for some."""
    raw = found if isinstance(found, bytes) else msgspec.msgpack.encode(found)
    return len(raw).to_bytes(4, "little") + raw


HEAD = b"\x05\x00\x01\x00"
HONEST = HEAD + b"\x01\x00" + column(["key"]) + column([b"data"])


def test_an_honest_part_is_read() -> None:
    """What the lies below differ from in one thing each."""
    (found,) = decoded(part(HONEST))
    assert list(found.rows()) == [StateChange(5, 1, 0, "key", b"data")]


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(part(HONEST)[:12], id="head of the part cut off"),
        pytest.param(part(HONEST)[:-1], id="part cut off"),
        pytest.param(part(HONEST) + b"\0", id="more behind the part"),
        pytest.param(part(HONEST, length=2**32 - 1), id="part of 4 GiB"),
        pytest.param(part(HONEST, length=len(HONEST) - 1), id="part one byte shorter"),
        pytest.param(part(HONEST, records=2), id="one record more"),
        pytest.param(part(HONEST, records=0), id="one record less"),
        pytest.param(part(HONEST, records=2**32 - 1), id="4 billion records"),
        pytest.param(part(HEAD + column([]) + column([]), records=0), id="no changes"),
        pytest.param(part(b""), id="no body"),
        pytest.param(part(HEAD), id="nothing but a head"),
        pytest.param(part(b"\x05\x00\x00\x00" + HONEST[4:]), id="groups of no byte"),
        pytest.param(part(b"\x05\x00\x03\x00" + HONEST[4:]), id="groups of three bytes"),
        pytest.param(part(b"\xff\x7f\x01\x00\x01\x01" + HONEST[6:]), id="group 32,768"),
        pytest.param(part(b"\x05\x00\x01\x02" + HONEST[4:]), id="columns of a tuple that are not there"),
        pytest.param(part(b"\x05\x00\x01\xff" + HONEST[4:]), id="255 columns that are not there"),
        pytest.param(part(HONEST + b"\0"), id="more behind the columns"),
        pytest.param(part(HEAD + b"\x01\x00" + b"\xff\xff\xff\xff"), id="column of 4 GiB"),
        pytest.param(part(HEAD + b"\x01\x00" + column(["key"]) + b"\0\0\0"), id="column's length cut off"),
        pytest.param(part(HEAD + b"\x01\x00" + column(["a", "b"]) + column([b""])), id="one key more"),
        pytest.param(part(HEAD + b"\x01\x00" + column(["a"]) + column([b"", b""])), id="one data more"),
        pytest.param(part(HEAD + b"\x01\x00" + column(b"\xdd\xff\xff\xff\xff") + column([b""])), id="4 billion keys"),
        pytest.param(part(HEAD + b"\x01\x00" + column(b"\x91\xa1\xff") + column([b""])), id="key not UTF-8"),
        pytest.param(part(HEAD + b"\x01\x00" + column(b"\x90\xc0") + column([b""])), id="more in a column"),
        pytest.param(part(HEAD + b"\x01\x00" + column({"a": 1}) + column([b""])), id="keys not an array"),
        pytest.param(part(HEAD + b"\x01\x00" + column(["a"]) + column(["text"])), id="data not bytes"),
        pytest.param(
            part(b"\x05\x00\x01\x02\x01\x00" + column(["a"]) + column([1, 2]) + column([b""])), id="tuples cut short"
        ),
    ],
)
def test_a_part_that_lies_is_refused(raw: bytes) -> None:
    """About its lengths, its records, its groups or its columns; and nothing large is allocated for it."""
    with pytest.raises(ValueError):
        list(decode_parts(raw))


def test_a_key_nested_without_end_is_refused() -> None:
    """By the decoder's own bound."""
    with pytest.raises(RecursionError):
        list(decode_parts(part(HEAD + b"\x01\x00" + column(b"\x91" * 100_000) + column([b""]))))


@pytest.mark.parametrize("kind", [0, 4, 255])
def test_an_unknown_kind_is_told_from_damage(kind: int) -> None:
    """A later release may have written it."""
    with pytest.raises(UnknownKindError):
        list(decode_parts(part(HONEST, kind=kind)))


@pytest.mark.parametrize("key", [None, True, 1.5, {"a": 1}, [], ["a", [None]], ["a", []]], ids=name_of)
@pytest.mark.parametrize("in_columns", [False, True])
def test_a_key_that_no_user_gave_is_no_key(key: Any, in_columns: bool) -> None:
    """It would be entered into a table under a name that nobody can ask for, or break it."""
    columns = column([key]) * (2 if in_columns else 1)
    with pytest.raises(ValueDecodeError):
        list(decode_parts(part(bytes([5, 0, 1, 2 * in_columns, 1, 0]) + columns + column([b""]))))


def test_columns_of_different_lengths_are_a_bug() -> None:
    """They are never sent."""
    with pytest.raises(AssertionError):
        KeyedChanges(0, np.zeros(2, np.int16), b"\x01", ["a"], [b""])


def test_a_table_can_tell_that_everything_is_set() -> None:
    """Then it need not look at the operations."""
    rows = [StateChange(0, Operation.SET, 0, "a", b"x"), StateChange(0, Operation.CLEAR, 0, "b")]
    assert of("a", "b").all_set
    assert not keyed_changes(rows)[0].all_set


def test_the_contract_keeps_no_reference_to_the_bytes() -> None:
    """A frame of 1 GiB must not stay in memory for one key."""
    raw = bytearray(encode_parts([of("a")]))
    (found,) = list[Changes](decode_parts(raw))
    raw.clear()  # raises BufferError where a view is left
    assert found.records == 1


@given(ROWS)
def test_packed_changes_are_the_same_changes(written: list[StateChange]) -> None:
    """Their bytes stand for them, and they are decoded if they are asked for."""
    for changes in keyed_changes(written):
        packed = changes.packed()
        assert packed.size_bytes > 0
        assert encode_parts([packed.packed()]) == encode_parts([changes])
        assert rows([packed]) == rows([changes])
        assert rows(list(changes.packed().cut(30))) == rows([changes])
        assert packed.of_groups([changes.span]) is packed


def test_no_part_is_in_memory_twice_while_a_change_set_is_encoded() -> None:
    """The bytes, and those of the part that is being encoded: not the bytes of all parts, to be joined at the end."""
    parts = [KeyedChanges(0, np.zeros(4, GROUP), SET * 4, list("abcd"), [bytes(64 * KiB)] * 4) for _ in range(32)]
    tracemalloc.start()
    try:
        encoded = encode_parts(parts)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.5 * len(encoded)
