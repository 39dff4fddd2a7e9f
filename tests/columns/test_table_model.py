"""A table of columns against a dictionary: any writes, drops, replays and bases, of every type, with collisions."""

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from statebackend._codec.change_sets.column_changes import ColumnChanges
from statebackend._codec.change_sets.parts import decode_parts, encode_parts
from statebackend._columns.column_table import ColumnTable
from statebackend._columns.keys import Parts, hash_parts
from statebackend._columns.table_schema import table_schema
from statebackend._tables.key_groups import OwnedKeys
from statebackend.ids import all_key_groups
from tests.columns.column_types import KEYS, TYPES, array
from tests.columns.states import base_of

GROUPS = 3
Key = Any
Content = dict[Key, tuple[object, ...]]


def plain(key: object) -> Key:
    """A key that can be one of a dictionary."""
    return tuple(sorted(key.items())) if isinstance(key, dict) else key


class TableMachine(RuleBasedStateMachine):
    """`of` is written to, `replica` gets what is drained, `model` is the truth."""

    @initialize(
        types=st.lists(st.sampled_from(list(TYPES)), min_size=1, max_size=3),
        key_type=st.sampled_from(list(KEYS)),
        hashes=st.sampled_from([1 << 64, 5, 1]),
    )
    def declare(self, types: list[pa.DataType], key_type: pa.DataType, hashes: int) -> None:
        """An empty table, whose keys have so many different hashes."""

        def hash_keys(parts: Parts) -> np.ndarray:
            found = hash_parts(parts)
            return found if hashes == 1 << 64 else (found % np.uint64(hashes)) << np.uint64(20)

        self.types = {f"c{number}": type_ for number, type_ in enumerate(types)}
        self.key_type, self.hash_keys = key_type, hash_keys
        self.of, self.replica = self.empty(), self.empty()
        self.model: Content = {}
        self.copies: list[tuple[ColumnTable, Content]] = []

    def empty(self) -> ColumnTable:
        """A table of this schema."""
        schema = table_schema(pa.schema(self.types), self.key_type)
        return ColumnTable(schema, OwnedKeys(all_key_groups(GROUPS), GROUPS), hash_keys=self.hash_keys)

    def find(self, keys: list[object]) -> np.ndarray:
        """The rows of keys that are there."""
        rows = self.of.find(array(keys, self.key_type))
        assert (rows >= 0).all()
        return rows

    def some_keys(self, data: st.DataObject) -> list[Any]:
        """Some keys of the model, each once, as they were given."""
        if not self.model:
            return []
        some = data.draw(st.lists(st.sampled_from(list(self.model)), unique=True, max_size=6))
        return [dict(key) if isinstance(key, tuple) else key for key in some]

    @rule(data=st.data())
    def add(self, data: st.DataObject) -> None:
        """Some keys are new, some are given twice."""
        keys = data.draw(st.lists(KEYS[self.key_type], max_size=12))
        rows, is_new = self.of.find_or_add(array(keys, self.key_type))
        assert is_new.tolist() == [plain(key) not in self.model for key in keys]
        assert len(set(rows.tolist())) == len(set(map(plain, keys)))
        self.model |= {plain(key): (None,) * len(self.types) for key in keys if plain(key) not in self.model}

    @rule(data=st.data())
    def scatter(self, data: st.DataObject) -> None:
        """Some columns of some keys, nulls among them."""
        keys = self.some_keys(data)
        names = data.draw(st.lists(st.sampled_from(list(self.types)), unique=True, min_size=1))
        columns = {
            name: data.draw(st.lists(st.none() | TYPES[self.types[name]], min_size=len(keys), max_size=len(keys)))
            for name in names
        }
        arrays = [array(values, self.types[name]) for name, values in columns.items()]
        self.of.scatter(self.find(keys), pa.RecordBatch.from_arrays(arrays, names=names))
        for number, key in enumerate(map(plain, keys)):
            row = dict(zip(self.types, self.model[key], strict=True)) | {name: columns[name][number] for name in names}
            self.model[key] = tuple(row.values())

    @rule(data=st.data())
    def write_numpy(self, data: st.DataObject) -> None:
        """A value moves from one key to others."""
        keys = self.some_keys(data)
        fixed = [name for name, type_ in self.types.items() if "string" not in str(type_) and type_ not in KEYS]
        fixed = [name for name in fixed if self.types[name] != pa.large_binary()]
        if len(keys) > 1 and fixed:
            name, rows = data.draw(st.sampled_from(fixed)), self.find(keys)
            values, valid = self.of.columns_numpy(rows[:1].repeat(len(rows) - 1), name)
            self.of.write_numpy(rows[1:], name, values, valid)
            at = list(self.types).index(name)
            for key in map(plain, keys[1:]):
                row = list(self.model[key])
                row[at] = self.model[plain(keys[0])][at]
                self.model[key] = tuple(row)

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        """Some keys, which may come back."""
        keys = self.some_keys(data)
        self.of.drop(self.find(keys))
        for key in map(plain, keys):
            del self.model[key]

    @rule(data=st.data())
    def add_and_drop(self, data: st.DataObject) -> None:
        """Keys that were just added, as by a write that fails."""
        keys = data.draw(st.lists(KEYS[self.key_type], max_size=4))
        rows, is_new = self.of.find_or_add(array(keys, self.key_type))
        self.of.drop(rows[is_new])

    @rule()
    def drain(self) -> None:
        """What was written since the last drain makes the replica equal, key groups one by one or not."""
        drained = list(self.of.drain(3))
        if drained:
            for changes in decode_parts(encode_parts(drained)):
                assert isinstance(changes, ColumnChanges)
                self.replica.apply(changes)
        assert list(self.of.drain(3)) == []
        self.check(self.replica, self.model)

    @rule(keep=st.booleans())
    def snapshot(self, keep: bool) -> None:
        """A copy beside later writes."""
        self.copies = [*(self.copies[-1:] if keep else []), (self.of.copy(), dict(self.model))]

    @rule(halved=st.booleans())
    def rebuild(self, halved: bool) -> None:
        """The bases of a copy rebuild what there was, also over stale rows of the same keys."""
        for copied, content in self.copies:
            rebuilt = self.empty()
            found = base_of(copied, range(GROUPS), GROUPS)
            if halved and found:
                rebuilt.apply(found[0].between(0, (found[0].records + 1) // 2))
            for changes in found:
                rebuilt.apply(changes)
            self.check(copied, content)
            self.check(rebuilt, content)
            assert list(rebuilt.drain(3)) == []

    @invariant()
    def is_as_the_model(self) -> None:
        """Every key and value."""
        self.check(self.of, self.model)

    def check(self, found: ColumnTable, content: Content) -> None:
        """The table has these rows."""
        rows = found.live_rows()
        assert found.num_rows == len(rows) == len(content)
        keys = list(map(plain, found.keys(rows).to_pylist()))
        assert set(keys) == content.keys()
        gathered = found.gather(rows)
        for number, (name, type_) in enumerate(self.types.items()):
            assert gathered.column(name).equals(array([content[key][number] for key in keys], type_))
            gathered.column(name).validate(full=True)


TestTable = TableMachine.TestCase
TestTable.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
