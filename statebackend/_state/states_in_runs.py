"""Has the tables of all states that are looked up in runs take over bases and layers, and asks them what they need."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from statebackend._codec.change_sets.changes import Changes
from statebackend._runs.open_base import OpenBase
from statebackend._runs.page_map import PlacedPart, TakesRuns, in_order
from statebackend._runs.run_file import RunPart
from statebackend._tables.placed import Placed, WantedEntries
from statebackend._tables.snapshot import StatesSnapshot
from statebackend._tables.table import Table
from statebackend.errors import DataError, SettingsError

PAGE_BYTES: Final = 57
"""Bytes in memory of each page: its first order, checksum, number of rows, and whether it was proved; with a share of
what its part takes."""


class StatesInRuns:
    """`tables`: of all states, by id; also of those that are declared later."""

    def __init__(self, tables: Mapping[int, Table]) -> None:
        self._tables = tables

    def attach(self, files: Sequence[OpenBase], *, is_base: bool) -> int:
        """Have the tables look up in the pages of the bases, or of the next layer over them. Blocks on the disk.

        What the files hold beside pages is applied before, and newer changes later. Rows in pages that are not in
        order, as when the number of key groups was changed, are applied instead; returns how many. Raises `DataError`
        where a file has an unknown state.
        """
        applied = 0
        runs = self._runs()
        for state_id in sorted({*runs, *(part.state_id for each in files for part in each.file.parts)}):
            table = self._tables.get(state_id)
            if table is None:
                raise DataError("a base has a state that its commit does not describe", state_id=state_id)
            placed: list[PlacedPart] = []
            for each in files:
                parts = each.parts_of(state_id)
                # What is in memory hides layers that are newer.
                is_fit = state_id in runs and (is_base or not runs[state_id].groups_in_no_run)
                if parts and is_fit and in_order(parts):
                    placed += _placed(each, parts)
                    continue
                for part in parts:
                    for rows in each.rows(part):
                        table.apply(rows)
                        applied += rows.records
            if state_id in runs:
                runs[state_id].attach(placed)
        return applied

    def replace(self, bases: Sequence[OpenBase], key_groups: frozenset[int], snapshot: StatesSnapshot) -> None:
        """Have the tables look up in these bases, which were made of `key_groups` of the snapshot."""
        for table, parts, copied in self._made_of(snapshot, bases):
            table.replace(parts, key_groups, copied)

    def check_taken_in(self, key_groups: frozenset[int], snapshot: StatesSnapshot) -> None:
        """Assert that bases of `key_groups` of the snapshot take in all layers, which go then. Blocks on the disk.

        Layers name the span of their key groups, of which some may be without rows, so the rows are counted.
        """
        for table in snapshot.tables.values():
            if isinstance(table, TakesRuns):
                assert not table.runs.num_rows_outside(key_groups), "rows of layers that no base takes in would be lost"

    def put_layer(self, files: Sequence[OpenBase], layer: int, snapshot: StatesSnapshot) -> None:
        """Have the tables look up in these files, made of the snapshot, in place of that layer and those over it.

        The bases are layer 0.
        """
        for table, parts, copied in self._made_of(snapshot, files):
            table.put_layer(parts, layer, copied)

    @property
    def memory_bytes(self) -> int:
        """The most that the rows of one of these states may take, or of all that share it; 0 unless they look up."""
        return max(each.memory.bytes_max for each in self._runs().values()) if self.looks_up else 0

    @property
    def ids(self) -> frozenset[int]:
        """The states that are looked up in runs."""
        return frozenset(self._runs())

    @property
    def want_base(self) -> bool:
        """True if a table has so many changes, or drops, that are in no run that they should go into one."""
        return any(each.memory.is_short or each.has_too_many_drops for each in self._runs().values())

    @property
    def is_whole(self) -> bool:
        """True if these states are whole in memory, so far: bases are written, and nobody looks up in them."""
        return any(each.memory.is_whole for each in self._runs().values())

    @property
    def looks_up(self) -> bool:
        """True if there are such states, and they look up in runs, or will in the next base."""
        runs = self._runs().values()
        return bool(runs) and not any(each.memory.is_whole for each in runs)

    @property
    def is_full(self) -> bool:
        """True if rows have to leave the memory, and cannot before a commit lists the runs that they are in."""
        return any(each.memory.is_full for each in self._runs().values())

    def leave_memory(self) -> None:
        """Look up in runs from now on: the next base has all rows, and until it is taken over all stay in memory."""
        for each in self._runs().values():
            each.memory.is_whole, each.has_strays = False, True

    def check_room(self) -> None:
        """Raise `SettingsError` if what has to be in memory of each page takes half of what there is for the rows."""
        for memory in {each.memory for each in self._runs().values()}:
            pages = sum(each.runs.num_pages for each in self._runs().values() if each.memory is memory)
            if pages * PAGE_BYTES > memory.bytes_max // 2:
                raise SettingsError(
                    "the state is too large for state_memory_bytes, which has to hold where each page begins: raise it",
                    state_memory_bytes=memory.bytes_max,
                    at_least=2 * pages * PAGE_BYTES,
                )

    @property
    def can_take_layer(self) -> bool:
        """True if what the bases hold of these states is all looked up there, and few enough keys are gone from it.

        Otherwise a row in memory may be in a base and in no run, and nobody would remember that it was dropped.
        """
        runs = self._runs().values()
        return bool(runs) and not any(each.has_strays or each.has_too_many_drops for each in runs)

    def groups_in_no_run(self) -> frozenset[int]:
        """The key groups of rows that should be in runs, and are in none."""
        runs = self._runs().values() if self.looks_up else ()
        return frozenset[int]().union(*(each.groups_in_no_run for each in runs))

    def _runs(self) -> Mapping[int, TakesRuns]:
        return {state_id: each for state_id, each in self._tables.items() if isinstance(each, TakesRuns)}

    def _made_of(
        self, snapshot: StatesSnapshot, files: Sequence[OpenBase]
    ) -> Iterator[tuple[TakesRuns, Sequence[PlacedPart], TakesRuns]]:
        for state_id, table in self._runs().items():
            copied = snapshot.tables.get(state_id)
            if isinstance(copied, TakesRuns):  # or the state was declared later
                yield table, [one for each in files for one in _placed(each, each.parts_of(state_id))], copied


class NewLayer:
    """The content of a new `layer`: of the states in runs of a snapshot, all that is not below it."""

    def __init__(self, snapshot: StatesSnapshot, layer: int) -> None:
        self._snapshot = snapshot
        self._layer = layer

    def rows(self, groups: frozenset[int], pause: Callable[[], None]) -> Iterator[Changes]:
        """The rows of these key groups, in order, in pages. `pause`: as for `StatesSnapshot.placed`."""

        def placed(table: Table, wanted: WantedEntries) -> Placed | None:
            return table.placed_over(wanted, self._layer) if isinstance(table, TakesRuns) else None

        yield from self._snapshot.placed(groups, pause, placed=placed).changes(sorted(groups))  # all in one thread

    def drops(self) -> Iterator[Changes]:
        """The drops of keys that are gone."""
        for state_id, table in self._snapshot.tables.items():
            if isinstance(table, TakesRuns):
                yield from table.dropped(state_id, self._layer)


def _placed(file: OpenBase, parts: Iterable[RunPart]) -> Iterator[PlacedPart]:
    return (PlacedPart(part, file.base.key_groups, file.is_whole) for part in parts)
