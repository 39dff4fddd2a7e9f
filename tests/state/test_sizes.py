"""How much there is of each state is known without looking at the entries, and a recount gives the same."""

import operator
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend import TimeToLive
from statebackend._codec.change_sets.changes import Changes
from statebackend._codec.change_sets.parts import decode_parts, encode_parts
from statebackend._columns.column_table import ColumnTable
from statebackend._state.declared import KeyedStates
from statebackend._tables.table import EntryTable
from statebackend.ids import KeyGroupRange, StateSize, all_key_groups
from tests.state.states import MAX_PARALLELISM, all_states, states_of

HALVES = (KeyGroupRange(0, 63), KeyGroupRange(64, 127))
ALL = all_key_groups(MAX_PARALLELISM)
TEXTS = st.text(alphabet="abc", max_size=200)


def recounted(states: KeyedStates) -> dict[int, tuple[int, int]]:
    """Keys and bytes of each state, by id, from every entry."""
    return {state_id: _count(table) for state_id, table in states._tables.items()}


def _count(table: Any) -> tuple[int, int]:
    if isinstance(table, ColumnTable):
        rows = table.gather(table.live_rows())
        texts = [text for text in rows.column("text").to_pylist() if text is not None]
        return table.num_rows, 8 * table.num_rows + sum(len(text.encode()) for text in texts)
    assert isinstance(table, EntryTable)
    return len(table.entries), sum(map(_bytes_of, table.entries.values()))


def _bytes_of(entry: Any) -> int:
    return sum(map(len, (*entry, *entry.values()))) if isinstance(entry, dict) else len(entry)


def told(states: KeyedStates) -> dict[int, tuple[int, int]]:
    """What the states say of themselves, once they are drained."""
    return {state_id: (each.keys, each.size_bytes) for each in states.state_sizes() for state_id in each.states}


def stored(changes: Iterable[Changes]) -> list[Changes]:
    """Changes as they come back from a segment."""
    return [part for each in changes for part in decode_parts(encode_parts([each]))]


class Job:
    """A state of each kind, its clock, and the changes that made it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[Changes] = []
        self.states = all_states()
        self._declare()

    def _declare(self) -> None:
        ttl = TimeToLive(10, lambda: self.now)
        declared = self.states
        self.number = declared.value_state("number", float)
        self.text = declared.value_state("text", str, ttl=ttl)
        self.hops = declared.list_state("hops", str, ttl=ttl)
        self.seen = declared.map_state("seen", str, str, ttl=ttl)
        self.total = declared.reducing_state("total", float, operator.add)
        self.rows = declared.columnar_state("rows", pa.schema({"n": pa.int64(), "text": pa.string()}), key=pa.int64())
        self.timers = declared.timers("timers")

    def write(self, key: int, what: str, text: str) -> None:
        """Do one thing to a key."""
        match what:
            case "set":
                self.number[key], self.text[key] = 1.5, text
                self.hops[key] = [text, "x"]  # type: ignore[assignment]  # the stubs of a mapping know views only
                self.seen[key] = {text: text, "x": ""}
                self.total.add(key, 2.0)
                self.rows[key] = {"n": 1, "text": text or None}
                self.timers.register(key, 5.0)
            case "many":
                self.number.put_many([key, key, key + 1], [1.0, 2.0, 3.0])
                self.text.put_many([key, key, key + 1], [text, "", text])
            case "add":
                self.hops[key].append(text)
                self.seen[key][text[:2]] = text
                self.rows[key] = {"n": None, "text": text}
            case "remove":
                for state in (self.number, self.text, self.hops, self.seen, self.total, self.rows):
                    if key in state:
                        del state[key]
                self.timers.delete(key, 5.0)
            case "clear":
                self.hops.clear()
                self.seen.clear()
                self.rows.clear()
            case "later":
                self.now += 4.0
            case "snapshot":
                self.states.snapshot()  # copies share entries from here on
            case _:
                raise AssertionError(what)

    def drain(self) -> None:
        self.log += stored(self.states.drain())

    def restore(self, parts: Iterable[KeyGroupRange], *, from_base: bool) -> list[KeyedStates]:
        """The states of each part in a process of its own, from the log or from a base."""
        made = []
        changes = stored(self.states.snapshot().changes(frozenset(ALL))) if from_base else self.log
        for part in parts:
            made.append(states_of(part, self.states.descriptors))
            made[-1].replay(changes)
        return made


STEPS = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.sampled_from(["set", "set", "many", "add", "remove", "clear", "later", "snapshot", "drain"]),
        TEXTS,
    ),
    max_size=30,
)


@settings(max_examples=25)
@given(STEPS, st.booleans())
def test_a_recount_gives_the_same_after_any_batches_and_restores(
    steps: list[tuple[int, str, str]], from_base: bool
) -> None:
    """Keys of every kind; bytes wherever they are counted, and of cells that are all of a size. Of others within them.

    The parts are those of a rescale: together they have what the whole had.
    """
    job = Job()
    for key, what, text in [*steps, (0, "drain", "")]:
        if what == "drain":
            job.drain()
            check(job.states, told(job.states))
        else:
            job.write(key, what, text)
    sizes = {state.name: state.state_id for state in job.states.descriptors}
    for states in (job.restore([ALL], from_base=from_base), job.restore(HALVES, from_base=from_base)):
        for each in states:
            check(each, told(each))
        if from_base:
            exact = [recounted(each)[sizes["text"]] == told(each)[sizes["text"]] for each in states]
            assert all(exact), "no cell of a base is replaced"


def check(states: KeyedStates, found: Mapping[int, tuple[int, int]]) -> None:
    counted = recounted(states)
    for each in states.descriptors:
        keys, size_bytes = found[each.state_id]
        expected = counted[each.state_id]
        if each.name == "text":
            assert keys == expected[0]
            assert (size_bytes == 0) == (keys == 0)
        else:
            assert (keys, size_bytes) == expected, each.name


@settings(max_examples=30)
@given(st.lists(st.lists(st.tuples(st.integers(0, 20), st.integers(100, 180)), max_size=20), max_size=6))
def test_replaced_cells_count_as_average_ones(batches: list[list[tuple[int, int]]]) -> None:
    """So bytes are within what they would be if all cells were as small, or as large, as any ever written."""
    states = all_states()
    texts = states.value_state("text", str)
    smallest, largest = 10_000, 0
    for batch in batches:
        for key, length in batch:
            texts[key] = "x" * length
            cell = len(states._tables[0].entries[key])  # type: ignore[attr-defined]  # on the heap
            smallest, largest = min(smallest, cell), max(largest, cell)
        list(states.drain())
        ((keys, size_bytes),) = told(states).values()
        assert keys == len(texts)
        assert keys * smallest - 1 <= size_bytes <= keys * largest + 1


def test_a_cell_that_is_overwritten_for_good_is_learned_in_time() -> None:
    """However wrong the average was."""
    states = all_states()
    texts = states.value_state("text", str)
    texts.put_many(list(range(100)), ["x" * 200] * 100)
    list(states.drain())
    assert told(states) == recounted(states)
    log = [*stored(states.snapshot().changes(frozenset(ALL)))]
    texts.put_many(list(range(100)), ["x"] * 100)
    log += stored(states.drain())
    assert told(states) == recounted(states)
    other = states_of(ALL, states.descriptors)
    other.replay(log)
    assert told(other) == recounted(states), "a restore reads both, in this order"


def test_strings_of_rows_that_were_dropped_do_not_count() -> None:
    """Nor those of all rows, nor of keys that another process has dropped."""
    job = Job()
    for key in range(3):
        job.write(key, "set", "abc")
    job.drain()
    for key, what in ((1, "remove"), (0, "clear")):
        job.write(key, what, "")
        job.drain()
        for states in (job.states, *job.restore([ALL], from_base=False)):
            check(states, told(states))


def test_states_that_are_not_declared_count_too() -> None:
    """They stay in the commits, so their size does."""
    job = Job()
    job.write(1, "set", "abc")
    job.drain()
    (other,) = job.restore([ALL], from_base=False)
    assert told(other) == told(job.states)


def test_no_states_have_no_sizes() -> None:
    """An empty state has one of nothing."""
    states = all_states()
    assert states.state_sizes() == ()
    states.value_state("text", str)
    assert states.state_sizes() == (StateSize((0,), 0, 0),)
