"""When the sequence number moves: by calls that draw a line under something, and only if there is something."""

from collections.abc import Awaitable, Callable

import pytest

from statebackend._changelog.changelog_writer import ChangelogWriter
from statebackend.ids import SequenceNumber
from statebackend.testing.virtual_time import run_virtual
from tests.changelog.fakes import Uploader, change, open_log

FIRST = SequenceNumber(0)


async def ask(writer: ChangelogWriter) -> None:
    writer.next_sequence_number()


async def persist(writer: ChangelogWriter) -> None:
    await writer.persist(FIRST)


async def append(writer: ChangelogWriter) -> None:
    writer.append(change())


async def truncate_to_first(writer: ChangelogWriter) -> None:
    await writer.truncate(FIRST)


async def truncate_to_next(writer: ChangelogWriter) -> None:
    await writer.truncate(writer.next_sequence_number())


@pytest.mark.parametrize(
    ("appended", "action", "moved"),
    [
        pytest.param(0, ask, 0, id="nextSequenceNumber, no append"),
        pytest.param(1, ask, 1, id="nextSequenceNumber, append"),
        pytest.param(0, persist, 0, id="persist, no append"),
        pytest.param(1, persist, 1, id="persist, append"),
        pytest.param(1, append, 0, id="append, append"),
        pytest.param(0, append, 0, id="append, no append"),
        pytest.param(0, truncate_to_first, 0, id="truncate empty"),
        pytest.param(1, truncate_to_first, 0, id="truncate old"),
        pytest.param(1, truncate_to_next, 1, id="truncate last"),
    ],
)
@run_virtual
async def test_the_number_moves_when_something_lies_below_it(
    appended: int, action: Callable[[ChangelogWriter], Awaitable[None]], moved: int
) -> None:
    """Row: FsStateChangelogWriterSqnTest.runTest, each of its nine cases, by the id of the parameter."""
    async with open_log(Uploader()) as log:
        for _ in range(appended):
            log.writer.append(change())
        await action(log.writer)
        assert log.writer._ledger._next == moved


@run_virtual
async def test_asking_twice_gives_the_same_number() -> None:
    """6.2: it counts change sets, not calls."""
    async with open_log(Uploader()) as log:
        log.writer.append(change())
        assert log.writer.next_sequence_number() == 1
        assert log.writer.next_sequence_number() == 1
