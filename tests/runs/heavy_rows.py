"""Rows that take as much memory as many: states as small as tests draw them outgrow a limit, and fit into another."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final
from unittest import mock

from statebackend._runs import run_table
from statebackend.settings import KiB, MiB

HEAVY_ROW_BYTES: Final = 8000
OUTGROWN: Final = 8 * KiB
"""A limit that one heavy row outgrows, with room for where 85 pages begin."""
NEARLY: Final = 64 * KiB
"""One that five outgrow, and that two pages fit into at an opening."""
ROOMY: Final = MiB
"""One that some dozens fit into; a state that has outgrown a lower one is whole in memory with it again."""


@contextmanager
def heavy_rows() -> Generator[None]:
    """Each row of a table that may be over runs counts as so many bytes beside its columns."""
    with mock.patch.object(run_table, "ROW_BYTES", HEAVY_ROW_BYTES):
        yield
