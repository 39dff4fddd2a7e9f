"""Runs that are read by ranges, however small they are: for jobs that are as small as tests draw them."""

from collections.abc import Generator
from contextlib import contextmanager
from unittest import mock

from statebackend._checkpoint import far_runs, incoming_runs


@contextmanager
def always_by_ranges(*, copies_come_in: bool = True) -> Generator[None]:
    """However small a segment is, and its parts: nothing is fetched whole because that were cheaper.

    `copies_come_in`: as they do; else what is far stays far.
    """
    with (
        mock.patch.multiple(far_runs, REQUEST_BYTES=-(1 << 30), ROUND_BYTES=1, TAIL_BYTES=256),
        mock.patch.object(incoming_runs, "AT_ONCE", incoming_runs.AT_ONCE if copies_come_in else 0),
    ):
        yield
