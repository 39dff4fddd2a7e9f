"""A table of columns: keys get rows, rows have values, and what was written is drained."""

import numpy as np
import pyarrow as pa
import pytest

from statebackend._codec.change_sets.changes import PART_RECORDS_MAX
from statebackend._codec.change_sets.column_changes import ColumnChanges
from statebackend._codec.xxh64 import Hashes
from statebackend._columns.column_table import ColumnTable
from statebackend._columns.key_rows import ADDED_AT_ONCE
from statebackend._columns.keys import KEY_BYTES_MAX, Parts, count_of, hash_parts
from statebackend._columns.table_schema import table_schema
from statebackend._tables.key_groups import OwnedKeys, key_group
from statebackend.errors import InputError, KeyGroupError, KeyTypeError
from statebackend.ids import KeyGroupRange, all_key_groups
from tests.columns.states import base_of

TEXT = pa.string()
SCHEMA = pa.schema({"n": pa.int64(), "name": pa.string()})


def table(key: pa.DataType = TEXT, schema: pa.Schema = SCHEMA, owned: KeyGroupRange | None = None) -> ColumnTable:
    """An empty table of 16 key groups."""
    return ColumnTable(table_schema(schema, key), OwnedKeys(owned or all_key_groups(16), 16))


def batch(**columns: list[object]) -> pa.RecordBatch:
    """Columns of the schema."""
    return pa.record_batch(columns, schema=pa.schema([SCHEMA.field(name) for name in columns]))


def restored(drained: list[ColumnChanges]) -> ColumnTable:
    """A table with these changes replayed."""
    found = table()
    for changes in drained:
        body = memoryview(b"".join(changes.body()))
        found.apply(next(ColumnChanges.read_body(0, changes.records, body)))
    return found


def content(of: ColumnTable) -> dict[str, dict[str, object]]:
    """The rows by key."""
    rows = of.live_rows()
    return dict(zip(of.keys(rows).to_pylist(), of.gather(rows).to_pylist(), strict=True))


def test_a_key_gets_a_row_once() -> None:
    """Given twice in one call, and found again in the next."""
    of = table()
    rows, is_new = of.find_or_add(pa.array(["a", "b", "a"]))
    assert rows[0] == rows[2] != rows[1]
    assert is_new.tolist() == [True, True, True]
    again, is_new = of.find_or_add(pa.array(["c", "b"]))
    assert (again[1], is_new.tolist()) == (rows[1], [True, False])
    assert of.find(pa.array(["d", "b"])).tolist() == [-1, rows[1]]
    assert of.num_rows == 3
    assert of.groups(rows).tolist() == [key_group(key, 16) for key in "aba"]


def test_new_rows_are_null_until_they_are_written() -> None:
    """Each column on its own."""
    of = table()
    rows, _ = of.find_or_add(pa.array(["a", "b"]))
    of.scatter(rows[:1], batch(n=[3]))
    assert content(of) == {"a": {"n": 3, "name": None}, "b": {"n": None, "name": None}}
    of.scatter(rows, batch(name=["x", None], n=[None, 4]))
    assert content(of) == {"a": {"n": None, "name": "x"}, "b": {"n": 4, "name": None}}


def test_a_row_that_is_used_again_has_nothing_of_the_key_before() -> None:
    """Neither numbers nor text, in rows among others that are full: until the new key is written, and after a base."""
    of = table()
    rows, _ = of.find_or_add(pa.array([f"old {number}" for number in range(5)]))
    of.scatter(rows, batch(n=[1, 2, 3, 4, 5], name=[*"vwxyz"]))
    list(of.drain(7))
    of.drop(rows[1:4])
    list(of.drain(7))
    again, _ = of.find_or_add(pa.array(["p", "q", "r"]))
    assert sorted(again.tolist()) == sorted(rows[1:4].tolist())
    of.scatter(again[:1], batch(n=[7]))
    expected = {
        "old 0": {"n": 1, "name": "v"},
        "old 4": {"n": 5, "name": "z"},
        "p": {"n": 7, "name": None},
        "q": {"n": None, "name": None},
        "r": {"n": None, "name": None},
    }
    assert content(of) == content(restored(base_of(of, range(16), 16))) == expected


@pytest.mark.parametrize("values", [[1, None, 3, None, 5], [None, 2, None], [None, None], [1, 2, None], [None, 2, 3]])
@pytest.mark.parametrize("order", [1, -1], ids=["in order", "backwards"])
def test_each_null_of_a_write_is_null(values: list[int | None], order: int) -> None:
    """The first of them, the last, and those between: over rows that were full, of new keys, and in any order."""
    full, fresh = table(), table()
    keys = pa.array([f"k{number}" for number in range(len(values))])
    rows, _ = full.find_or_add(keys)
    full.scatter(rows, batch(n=[9] * len(rows), name=["old"] * len(rows)))
    expected = [{"n": value, "name": value and str(value)} for value in values]
    for of in (full, fresh):
        rows, _ = of.find_or_add(keys)
        found = batch(n=values[::order], name=[value and str(value) for value in values][::order])
        of.scatter(rows[::order], found)
        assert of.gather(rows).to_pylist() == expected
        assert of.gather(rows[::-1]).to_pylist() == expected[::-1]
        assert [of.gather(rows[at : at + 1]).to_pylist() for at in range(len(rows))] == [[each] for each in expected]


def test_what_was_written_is_drained_once() -> None:
    """Rows and drops; a key that was dropped and came back is a row."""
    of = table()
    rows, _ = of.find_or_add(pa.array(["a", "b", "c"]))
    of.scatter(rows, batch(n=[1, 2, 3]))
    first = list(of.drain(7))
    assert [(each.state_id, each.records, each.drops) for each in first] == [(7, 3, 0)]
    assert list(of.drain(7)) == []
    of.drop(rows[:2])
    back, _ = of.find_or_add(pa.array(["b"]))
    assert back[0] not in rows.tolist(), "a row is not used again before its drop was drained"
    (second,) = of.drain(7)
    assert (second.records, second.drops) == (2, 1)
    assert (
        content(restored([*first, second]))
        == content(of)
        == {
            "b": {"n": None, "name": None},
            "c": {"n": 3, "name": None},
        }
    )
    again, _ = of.find_or_add(pa.array(["d", "e"]))
    assert sorted(again.tolist()) == sorted(rows[:2].tolist()), "now they are"


def test_a_row_that_is_written_twice_in_one_call_is_drained_once() -> None:
    """A key occurs once in a change; the last values count."""
    of = table()
    rows, _ = of.find_or_add(pa.array(["a", "b", "a"]))
    of.scatter(rows, batch(n=[1, 2, 3]))
    (drained,) = of.drain(7)
    assert (drained.records, drained.drops) == (2, 0)
    assert content(restored([drained])) == content(of) == {"a": {"n": 3, "name": None}, "b": {"n": 2, "name": None}}
    of.scatter(rows, batch(n=[4, 5, 6]))
    (drained,) = of.drain(7)
    assert drained.records == 2


@pytest.mark.parametrize(("dropped", "written"), [(PART_RECORDS_MAX + 5, 10), (10, PART_RECORDS_MAX + 5), (20_000, 0)])
def test_drops_are_drained_however_many_there_are(dropped: int, written: int) -> None:
    """Behind the rows that were written, in as many parts as it takes."""
    of = table()
    rows, _ = of.find_or_add(pa.array([f"k{number}" for number in range(dropped + written + 3)]))
    of.scatter(rows, batch(n=[1] * len(rows)))
    drained = list(of.drain(7))
    of.drop(rows[:dropped])
    of.scatter(rows[dropped : dropped + written], batch(n=[2] * written))
    more = list(of.drain(7))
    assert sum(each.drops for each in more) == dropped
    assert sum(each.sets for each in more) == written
    assert max(each.records for each in more) <= PART_RECORDS_MAX
    assert content(restored([*drained, *more])) == content(of)


def test_drops_are_replayed_into_a_table_that_has_got_a_column() -> None:
    """Beside rows, which have its default there: a part has fewer of these than records."""
    of = table()
    rows, _ = of.find_or_add(pa.array(["a", "b", "c"]))
    of.scatter(rows, batch(n=[1, 2, 3]))
    drained = list(of.drain(7))
    of.drop(rows[:1])
    of.scatter(rows[2:], batch(n=[4]))
    drained += of.drain(7)
    assert [(each.sets, each.drops) for each in drained] == [(3, 0), (1, 1)]
    wider = pa.schema({"n": pa.int64(), "x": pa.float64(), "text": pa.string()})
    described = table_schema(wider, TEXT, {"x": 0.5, "text": "none"})
    found = ColumnTable(described, OwnedKeys(all_key_groups(16), 16))
    for changes in drained:
        found.apply(changes)
    added = {"x": 0.5, "text": "none"}
    assert content(found) == {"b": {"n": 2, **added}, "c": {"n": 4, **added}}


@pytest.mark.parametrize("count", [ADDED_AT_ONCE - 1, ADDED_AT_ONCE, ADDED_AT_ONCE + 1, 2 * ADDED_AT_ONCE + 3])
def test_keys_are_found_or_added_however_many_there_are(count: int) -> None:
    """As many as are added in one go, and more: a key that comes again is as new as the first time."""
    of = table(pa.int64())
    numbers = np.arange(count)
    numbers[-1], numbers[1] = 0, -5
    known, _ = of.find_or_add(pa.array([-5]))
    rows, is_new = of.find_or_add(pa.array(numbers))
    assert rows[0] == rows[-1]
    assert rows[1] == known[0]
    assert len(set(rows.tolist())) == of.num_rows == count - 1
    assert np.flatnonzero(~is_new).tolist() == [1]
    assert of.keys(rows).to_pylist() == numbers.tolist()


def test_a_key_may_be_so_long_and_no_longer() -> None:
    """Its length has 24 bits beside the place of its bytes."""
    of = table()
    longest = "x" * KEY_BYTES_MAX
    rows, _ = of.find_or_add(pa.array([longest, "after"]))
    assert of.keys(rows).to_pylist() == [longest, "after"]
    with pytest.raises(KeyTypeError, match="too long") as caught:
        of.find(pa.array(["short", longest + "x"]))
    assert caught.value.facts == {"bytes_max": KEY_BYTES_MAX}


def test_a_key_of_another_owner_is_named_by_its_group() -> None:
    """The first of them, beside how many there are, at the edges of what is owned too."""
    keys = list(range(300))
    for owned in (KeyGroupRange(0, 7), KeyGroupRange(5, 5), KeyGroupRange(15, 15)):
        of = table(pa.int64(), owned=owned)
        foreign = [key_group(key, 16) for key in keys if key_group(key, 16) not in owned]
        own = [key for key in keys if key_group(key, 16) in owned]
        with pytest.raises(KeyGroupError) as caught:
            of.find(pa.array([*own[:1], *keys]))
        assert caught.value.facts == {"keys": len(foreign), "key_group": foreign[0], "owned": str(owned)}
        assert of.find(pa.array(own)).tolist() == [-1] * len(own)
        for other in (owned.first - 1, owned.last + 1):
            if 0 <= other < 16:
                key = next(key for key in keys if key_group(key, 16) == other)
                with pytest.raises(KeyGroupError):
                    of.find(pa.array([key]))


def test_a_key_that_is_dropped_again_and_again_is_dropped_once() -> None:
    """Whatever became of it in between; of keys with the same hash each is dropped."""
    of = ColumnTable(
        table_schema(SCHEMA, TEXT),
        OwnedKeys(all_key_groups(16), 16),
        hash_keys=lambda parts: np.zeros(count_of(parts), np.uint64),
    )
    of.find_or_add(pa.array(["a", "b", "c"]))
    list(of.drain(7))
    for _ in range(3):
        rows, _ = of.find_or_add(pa.array(["a", "b"]))
        of.drop(rows)
    (drained,) = of.drain(7)
    assert (drained.records, drained.drops) == (2, 2)
    assert list(content(of)) == ["c"]


def test_a_key_that_comes_and_goes_between_two_drains_is_no_change() -> None:
    """Beside one that was there before, which is dropped."""
    of = table()
    rows, _ = of.find_or_add(pa.array(["a", "b"]))
    list(of.drain(7))
    of.drop(rows[:1])
    added, _ = of.find_or_add(pa.array(["c"]))
    of.drop(added)
    (drained,) = of.drain(7)
    assert (drained.records, drained.drops) == (1, 1)
    assert list(content(of)) == ["b"]


def test_a_key_whose_write_failed_was_never_there() -> None:
    """Nothing of it is drained, unless it was there before; its row is used again later."""
    of = table()
    rows, _ = of.find_or_add(pa.array(["a"]))
    list(of.drain(7))
    of.drop(rows)
    added, _ = of.find_or_add(pa.array(["a", "b", "b"]))
    of.drop(added)
    assert of.num_rows == 0
    (drained,) = of.drain(7)
    assert (drained.records, drained.drops) == (1, 1)
    assert list(of.drain(7)) == []
    again, _ = of.find_or_add(pa.array(["b", "c"]))
    assert set(again.tolist()) < {*rows.tolist(), *added.tolist()}


def test_a_base_rebuilds_the_rows_of_its_groups() -> None:
    """In order of key groups, with hashes, whatever is written meanwhile."""
    of = table()
    keys = [f"key {number}" for number in range(1000)]
    rows, _ = of.find_or_add(pa.array(keys))
    of.scatter(rows, batch(n=list(range(1000)), name=keys))
    before, copied = content(of), of.copy()
    of.drop(rows[:30])  # more than come, and there is room: rows are used again in the same arrays
    list(of.drain(0))
    more, _ = of.find_or_add(pa.array([f"more {number}" for number in range(20)]))
    of.scatter(more, batch(n=list(range(20))))
    base = base_of(copied, range(16), 16)
    groups = [group for changes in base for group in changes.groups.tolist()]
    assert groups == sorted(groups)
    assert content(restored(base)) == before
    some = base_of(copied, [3, 5], 16)
    assert content(restored(some)) == {key: row for key, row in before.items() if key_group(key, 16) in (3, 5)}


def test_hashes_that_were_computed_ahead_are_not_computed_again() -> None:
    """In another thread, while earlier changes are applied: drops among them, and keys that come again."""
    of, hashed = table(), list[int]()
    rows, _ = of.find_or_add(pa.array(["a", "b", "c"]))
    of.scatter(rows, batch(n=[1, 2, 3]))
    drained = list(of.drain(7))
    of.scatter(rows, batch(n=[4, 5, 6]))
    of.drop(rows[:1])
    drained += of.drain(7)

    def hash_keys(parts: Parts) -> Hashes:
        hashed.append(count_of(parts))
        return hash_parts(parts)

    found = ColumnTable(table_schema(SCHEMA, TEXT), OwnedKeys(all_key_groups(16), 16), hash_keys=hash_keys)
    assert all(map(found.look_at, drained))
    assert hashed == [3, 3]
    for changes in drained:
        found.apply(changes)
    assert hashed == [3, 3]
    assert content(found) == content(of)


def test_bad_input_changes_nothing() -> None:
    """Wrong keys, columns, types, lengths and rows are refused first."""
    of = table()
    rows, _ = of.find_or_add(pa.array(["a", "b"]))
    of.scatter(rows, batch(n=[1, 2], name=["x", "y"]))
    before = content(of)
    with pytest.raises(KeyTypeError):
        of.find_or_add(pa.array([1, 2]))
    with pytest.raises(KeyTypeError):
        of.find_or_add(pa.array(["c", None]))
    with pytest.raises(InputError):
        of.scatter(rows, batch(n=[5]))
    with pytest.raises(InputError):
        of.scatter(rows, pa.record_batch({"n": pa.array([5, 6]), "other": pa.array([7, 8])}))
    with pytest.raises(InputError):
        of.scatter(rows, pa.record_batch({"name": pa.array(["p", "q"]), "n": pa.array([5, 6], pa.int32())}))
    with pytest.raises(InputError):
        of.scatter(rows + 1, batch(n=[5, 6]))
    of.drop(rows[1:])
    with pytest.raises(InputError):
        of.scatter(rows, batch(n=[5, 6]))
    del before["b"]
    assert content(of) == before
    owner = table(owned=KeyGroupRange(0, 7))
    with pytest.raises(KeyGroupError):
        owner.find_or_add(pa.array(list(map(str, range(20)))))
    assert owner.num_rows == 0
