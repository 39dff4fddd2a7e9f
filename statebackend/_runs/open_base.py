"""A base whose segment is open, as a table takes it over."""

from collections.abc import Iterator

import msgspec

from statebackend._codec.change_sets.changes import Changes
from statebackend._runs.page_map import in_order
from statebackend._runs.run_file import OpenRun, RunPart
from statebackend.ids import Base


class OpenBase(msgspec.Struct, frozen=True):
    """A base, and its segment."""

    file: OpenRun
    base: Base

    def others(self) -> Iterator[Changes]:
        """The changes beside the pages that the base stands for. Raises what reading a segment raises."""
        for changes in self.file.others():
            if (wanted := changes.of_groups(self.base.key_groups)) is not None:
                yield wanted

    def parts_of(self, state_id: int) -> list[RunPart]:
        """The parts with rows of a state."""
        return [part for part in self.file.parts if part.state_id == state_id]

    @property
    def is_whole(self) -> bool:
        """True if the base stands for all that was written into it."""
        return self.base.live == self.base.key_groups_written

    @property
    def is_in_order(self) -> bool:
        """True if the rows of each state can be looked up."""
        return all(in_order(self.parts_of(state_id)) for state_id in {part.state_id for part in self.file.parts})

    def rows(self, part: RunPart) -> Iterator[Changes]:
        """The rows of a part that the base stands for, decoded, some at a time."""
        pieces = self.file.changes(part)
        yield from (found for each in pieces if (found := each.of_groups(self.base.key_groups)) is not None)
