"""A table over runs against a dictionary: as the table in memory, with bases written and taken over at any moment."""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from statebackend._columns.column_table import ColumnTable
from statebackend._columns.table_schema import table_schema
from statebackend._runs.run_table import RunTable
from statebackend._tables.key_groups import OwnedKeys
from statebackend.ids import all_key_groups
from tests.columns.column_types import array
from tests.columns.states import base_of
from tests.columns.test_table_model import GROUPS, Content, TableMachine, plain
from tests.runs.flushing import bases_of, take_over

OWNED = OwnedKeys(all_key_groups(GROUPS), GROUPS)


class RunTableMachine(TableMachine):
    """Bases are written of copies, and taken over at once, later, or never. Next to nothing stays in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.begun: RunTable | None = None

    def teardown(self) -> None:
        """The files are closed by then."""
        self.directory.cleanup()

    def empty(self) -> ColumnTable:
        """A table of this schema."""
        schema = table_schema(pa.schema(self.types), self.key_type)
        return RunTable(schema, OWNED, hash_keys=self.hash_keys, memory_bytes=1)

    @rule()
    def begin_base(self) -> None:
        """A base is begun when everything is drained."""
        if self.begun is None:
            self.drain()
            assert isinstance(self.of, RunTable)
            self.begun = self.of.copy()

    @rule(gives_up=st.sampled_from([False, False, True]), size=st.sampled_from([1, 1 << 20]))
    def end_base(self, gives_up: bool, size: int) -> None:
        """It is in a commit now, or could not be written."""
        if self.begun is not None and not gives_up:
            assert isinstance(self.of, RunTable)
            files = bases_of(self.begun, OWNED, Path(self.directory.name), range(GROUPS), segment_bytes_max=size)
            take_over(self.of, self.begun, files, range(GROUPS))
        self.begun = None

    @rule()
    def write_base(self) -> None:
        """At once."""
        self.begin_base()
        self.end_base(gives_up=False, size=1 << 20)

    @rule(data=st.data())
    def look_up(self, data: st.DataObject) -> None:
        """Some keys are read, whatever is in memory; one by one or together."""
        for key in self.some_keys(data):
            (row,) = self.of.find(array([key], self.key_type)).tolist()
            found = self.of.gather(np.array([row]))
            for number, (name, type_) in enumerate(self.types.items()):
                assert found.column(name).equals(array([self.model[plain(key)][number]], type_))

    @rule(count=st.integers(1, 20))
    def window(self, count: int) -> None:
        """What looks for expired rows changes nothing."""
        assert self.of.which_live(self.of.window(count)).all()

    @rule(halved=st.booleans())
    def rebuild(self, halved: bool) -> None:
        """The bases of a copy rebuild what there was."""
        for copied, content in self.copies:
            rebuilt = self.empty()
            for changes in base_of(copied, range(GROUPS), GROUPS):
                rebuilt.apply(changes)
            self.check(rebuilt, content)

    def check(self, found: ColumnTable, content: Content) -> None:
        """The table has these rows, each once, over all pieces."""
        assert found.num_rows == len(content)
        seen = set()
        for rows in found.pieces():
            keys = list(map(plain, found.keys(rows).to_pylist()))
            assert not seen.intersection(keys)
            seen.update(keys)
            gathered = found.gather(rows)
            for number, (name, type_) in enumerate(self.types.items()):
                assert gathered.column(name).equals(array([content[key][number] for key in keys], type_))
        assert seen == content.keys()


TestRunTable = RunTableMachine.TestCase
TestRunTable.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
