"""The two sides of a merge, which each step of it reads."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from statebackend._columns.batch.aggregates import stored
from statebackend._columns.batch.numbered_keys import Grouped, column_in
from statebackend._columns.batch.vectors import Vector
from statebackend._columns.fitting import fitted


class MergeSides:
    """The rows of a batch by key, and what the state has of these keys.

    `old` has a row for each key, in order: nulls where `is_new`.
    """

    def __init__(self, groups: Grouped, batch: Any, old: Any, is_new: npt.NDArray[np.bool_]) -> None:
        self.groups: Final = groups
        self.batch: Final = batch
        self.old: Final = old
        self.is_new: Final = is_new
        self.schema: Final = old.schema

    def source(self, column: str, type_: Any) -> Any:
        """A column of the batch as one of `type_`."""
        return fitted(column_in(self.batch, column), type_, column)

    def type_of(self, name: str) -> Any:
        """The type of a column of the state."""
        return self.schema.field(name).type

    def stored(self, vector: Vector, name: str) -> Any:
        """The array for a column of the state. Raises as `aggregates.stored`."""
        return stored(vector, self.type_of(name), name, self.groups.keys)
