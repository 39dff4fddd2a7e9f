"""A table over runs against a dictionary: as the table in memory, with bases written and taken over at any moment."""

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, cast

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from statebackend._codec.change_sets.column_changes import ColumnChanges
from statebackend._codec.change_sets.parts import decode_parts, encode_parts
from statebackend._columns.column_table import ColumnTable
from statebackend._columns.table_schema import table_schema
from statebackend._runs.overlay_memory import OverlayMemory
from statebackend._runs.run_table import RunTable
from statebackend._tables.key_groups import OwnedKeys
from statebackend.ids import all_key_groups
from tests.columns.column_types import array
from tests.columns.states import base_of
from tests.columns.test_table_model import GROUPS, Content, TableMachine, plain
from tests.runs.flushing import bases_of, parts_of, take_over
from tests.runs.invariants import (
    assert_layers_are_the_model,
    assert_stored_is_the_model,
    assert_the_newest_row_is_found,
)
from tests.small_bounds import small_bounds

OWNED = OwnedKeys(all_key_groups(GROUPS), GROUPS)


class Begun(NamedTuple):
    """A copy that a base is made of, or that layer, and how much was drained by then."""

    copy: RunTable
    layer: int
    logged: int


class RunTableMachine(TableMachine):
    """Bases and layers are written of copies, and taken over at once, later, or never.

    Next to nothing stays in memory. `stored` is what a commit would list of them, `log` what was drained.
    """

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.begun: Begun | None = None
        self.stored: list[tuple[list, list[ColumnChanges]]] = []  # files, and the drops that belong to them
        self.stored_to = 0  # how much of the log they stand for
        self.log: list[ColumnChanges] = []

    def teardown(self) -> None:
        """The files are closed by then."""
        self.directory.cleanup()

    def empty(self) -> RunTable:
        """A table of this schema."""
        schema = table_schema(pa.schema(self.types), self.key_type)
        return RunTable(schema, OWNED, hash_keys=self.hash_keys, memory=OverlayMemory(1))

    @rule()
    def drain(self) -> None:
        """What is drained is logged, and a replica applies it."""
        if drained := list(self.of.drain(3)):
            found = [cast("ColumnChanges", each) for each in decode_parts(encode_parts(drained))]
            self.log += found
            for changes in found:
                self.replica.apply(changes)
        self.check(self.replica, self.model)

    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        """A base or a layer is begun when everything is drained."""
        if self.begun is None:
            self._begin(data.draw(st.integers(0, len(self.stored))))

    def _begin(self, layer: int) -> None:
        self.drain()
        assert isinstance(self.of, RunTable)
        self.begun = Begun(self.of.copy(), layer, len(self.log))

    @rule(gives_up=st.sampled_from([False, False, True]), size=st.sampled_from([1, 1 << 20]))
    def end(self, gives_up: bool, size: int) -> None:
        """It is in a commit now, or could not be written."""
        if self.begun is not None and not gives_up:
            assert isinstance(self.of, RunTable)
            copy, layer, logged = self.begun
            directory = Path(self.directory.name)
            files = bases_of(copy, OWNED, directory, range(GROUPS), segment_bytes_max=size, layer=layer)
            drops = list(copy.dropped(0, layer)) if layer else []
            if layer:
                self.of.put_layer(parts_of(files), layer, copy)
            else:
                take_over(self.of, copy, files, range(GROUPS))
            self.stored, self.stored_to = [*self.stored[:layer], (files, drops)], logged
        self.begun = None

    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        """At once."""
        self.begin(data)
        self.end(gives_up=False, size=1 << 20)

    @rule()
    def restart(self) -> None:
        """Another process looks up in what is stored, and applies what was logged since; and so in memory alone."""
        self.drain()
        again = self.empty()
        schema = table_schema(pa.schema(self.types), self.key_type)
        in_memory = ColumnTable(schema, OWNED, hash_keys=self.hash_keys)
        for files, drops in self.stored:
            for changes in drops:
                again.apply(changes)
                in_memory.apply(changes)
            again.attach(parts_of(files))
            for file, _ in files:
                for part in file.parts:
                    for changes in file.changes(part):
                        in_memory.apply(changes)
        for changes in self.log[self.stored_to :]:
            again.apply(changes)
            in_memory.apply(changes)
        assert_stored_is_the_model(in_memory, self.model, self.types)
        assert_stored_is_the_model(again, self.model, self.types)
        self.of, self.begun, self.copies = again, None, []

    @rule(data=st.data(), takes_in=st.booleans(), is_restarted=st.booleans())
    def bring_back(self, data: st.DataObject, takes_in: bool, is_restarted: bool) -> None:
        """Keys are dropped in one layer, and some are back in the next, which may take that one in."""
        if not self.stored or not (keys := self.some_keys(data)):
            return
        self.end(gives_up=True, size=1)
        self.drop_keys(keys)
        self._begin(len(self.stored))
        self.end(gives_up=False, size=1 << 20)
        back = data.draw(st.lists(st.sampled_from(keys), unique_by=plain))
        self.of.find_or_add(array(back, self.key_type))
        self.model |= {plain(key): (None,) * len(self.types) for key in back}
        self._begin(len(self.stored) - takes_in)
        self.end(gives_up=False, size=1 << 20)
        if is_restarted:
            self.restart()

    @rule(data=st.data())
    def drop_meanwhile(self, data: st.DataObject) -> None:
        """Keys that no run has are dropped while a base or a layer is written that has them."""
        self.end(gives_up=True, size=1)
        self.add(data)
        self.begin(data)
        self.drop_keys(self.some_keys(data))
        self.end(gives_up=False, size=1 << 20)

    def drop_keys(self, keys: list[Any]) -> None:
        """These keys, which are there."""
        self.of.drop(self.find(keys))
        for key in map(plain, keys):
            del self.model[key]

    @rule(data=st.data())
    def overwrite(self, data: st.DataObject) -> None:
        """Two layers with other values of some keys, which are looked up then."""
        self.end(gives_up=True, size=1)
        for _ in range(2):
            self.scatter(data)
            self._begin(len(self.stored))
            self.end(gives_up=False, size=1 << 20)
        self.look_up(data)

    @rule(data=st.data())
    def look_up(self, data: st.DataObject) -> None:
        """Some keys are read, when nothing is in memory that a run has."""
        self.drain()
        for key in self.some_keys(data):
            assert_the_newest_row_is_found(self.of, array([key], self.key_type), self.model[plain(key)], self.types)

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
        assert_layers_are_the_model(found, content, self.types)


TestRunTable = RunTableMachine.TestCase
TestRunTable.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


class TestRunTableInSmallBounds(RunTableMachine.TestCase):
    """The same where streams, parts and reads are cut after a few rows, as those of a million rows are."""

    settings = settings(max_examples=25, stateful_step_count=25, deadline=None)

    @classmethod
    def setUpClass(cls) -> None:
        cls.bounds = ExitStack()
        cls.bounds.enter_context(small_bounds(0, share=1.0))

    @classmethod
    def tearDownClass(cls) -> None:
        cls.bounds.close()
