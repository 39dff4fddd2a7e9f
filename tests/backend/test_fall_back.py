"""With `fall_back_to_older`: files that the newest commit points into are damaged or gone in both copies."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

import statebackend as sb
from statebackend._log.names import entry_key, floor_key
from statebackend._ranges.range_owners import open_range_owners
from statebackend.errors import CorruptSegmentError, DataError, MissingObjectError
from statebackend.observers import Metrics
from tests.backend.conftest import Tree, tree_of
from tests.knobs import replaced
from tests.ranges.parts import open_run

Damaging = Callable[[Path], None]


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def gone(path: Path) -> None:
    path.unlink()


DAMAGES = pytest.mark.parametrize("damage", [flipped, emptied, gone])


class Told(Metrics):
    """What was told of older checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[int, type[Exception]]] = []

    def older_checkpoint_opened(self, checkpoint_id: sb.ids.CheckpointId, reason: Exception) -> None:
        super().older_checkpoint_opened(checkpoint_id, reason)
        self.told.append((checkpoint_id, type(reason)))


@pytest.fixture(params=["heap", "rocksdb"])
def lenient(settings: sb.Settings, request: pytest.FixtureRequest) -> sb.Settings:
    return replaced(settings, fall_back_to_older=True, table=request.param)


async def commit_three(settings: sb.Settings, first: int = 1) -> None:
    """Each commit has a segment of its own, and the value says which it was."""
    async with sb.open_backend(settings) as backend:
        for number in range(first, first + 3):
            backend.value_state("n", int)["k"] = number
            await backend.checkpoint(number)


def data_of(settings: sb.Settings) -> list[tuple[Path, Path]]:
    """The segments in the primary, oldest first, each with its local copy."""
    (root,) = settings.local
    primary = Path(settings.primary.removeprefix("file://"), settings.job)
    found = sorted((primary / "segments").iterdir())
    return [(path, Path(root, f"job_{settings.job}", "taskowned", "segments", path.name)) for path in found]


def files_of(settings: sb.Settings) -> Tree:
    """Both copies, without entries of the log and the hint."""
    return {
        name: content
        for root in (settings.primary.removeprefix("file://"), *settings.local)
        for name, content in tree_of(Path(root)).items()
        if "segments" in name
    }


@DAMAGES
async def test_the_next_older_checkpoint_is_opened_and_told_and_nothing_is_deleted(
    lenient: sb.Settings, damage: Damaging, caplog: pytest.LogCaptureFixture
) -> None:
    """It is gone on from there, also without the setting, and by whoever only reads. By default it is an error."""
    await commit_three(lenient)
    for path in data_of(lenient)[2]:
        damage(path)
    before = files_of(lenient)
    with pytest.raises((CorruptSegmentError, MissingObjectError)):
        async with sb.open_backend(replaced(lenient, fall_back_to_older=False)):
            pass
    for read_only in (True, False):
        told = Told()
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            async with sb.open_backend(lenient, observer=told, read_only=read_only) as backend:
                assert backend.value_state("n", int)["k"] == 2
                assert backend.restored is not None
                assert backend.restored.checkpoint_id == 2
                if not read_only:
                    assert backend.next_checkpoint_id == 4
                    backend.value_state("n", int)["k"] = 40
                    await backend.checkpoint(4)
        assert [(id_, issubclass(error, DataError)) for id_, error in told.told] == [(2, True)]
        assert told.older_checkpoints_opened == told.restores == 1
        assert len([each for each in caplog.records if "an older checkpoint, 2" in each.getMessage()]) == 1
        after = files_of(lenient)
        assert {name: after[name] for name in before} == before
    async with sb.open_backend(replaced(lenient, fall_back_to_older=False)) as backend:
        assert backend.value_state("n", int)["k"] == 40
        assert [each.checkpoint_id async for each in backend.history()] == [4, 2, 1]


@pytest.mark.parametrize("oldest", [0, 1])
async def test_as_many_are_passed_over_as_have_to_be(lenient: sb.Settings, oldest: int) -> None:
    """All three have the segment of the first: if that is damaged, the error is that of the newest commit."""
    await commit_three(lenient)
    for path in data_of(lenient)[oldest]:
        flipped(path)
    told = Told()
    if oldest == 0:
        with pytest.raises(CorruptSegmentError):
            async with sb.open_backend(lenient, observer=told):
                pass
        assert told.told == []
        return
    async with sb.open_backend(lenient, observer=told) as backend:
        assert backend.value_state("n", int)["k"] == 1
    assert told.told == [(1, CorruptSegmentError)]


async def test_a_damaged_commit_and_a_damaged_segment_are_passed_over_together(lenient: sb.Settings) -> None:
    """The newest commit cannot be read at all, and the one before it cannot be restored."""
    lenient = replaced(lenient, local=())
    await commit_three(lenient)
    primary = Path(lenient.primary.removeprefix("file://"), lenient.job)
    flipped(primary / entry_key(3))
    gone(data_of(replaced(lenient, local=("/",)))[1][0])
    told = Told()
    async with sb.open_backend(lenient, observer=told) as backend:
        assert backend.value_state("n", int)["k"] == 1
    assert [id_ for id_, _ in told.told] == [1]


async def test_a_checkpoint_that_was_asked_for_and_an_owner_of_a_part_go_back_to_no_other(
    lenient: sb.Settings,
) -> None:
    """Owners would have to go back together, and are told so."""
    await commit_three(lenient)
    for path in data_of(lenient)[2]:
        flipped(path)
    for options in ({"checkpoint_id": 3}, {"key_groups": sb.owners.KeyGroupRange(0, 127)}):
        with pytest.raises(CorruptSegmentError) as caught:
            async with sb.open_backend(lenient, **options):  # type: ignore[call-overload]
                pass
        notes = getattr(caught.value, "__notes__", [])
        assert any("open the coordinator and them at an older" in note for note in notes) is ("key_groups" in options)


async def test_a_checkpoint_that_is_not_retained_is_not_gone_back_to(lenient: sb.Settings) -> None:
    """What a sweep may be deleting is no way out. The error is that of the newest commit."""
    await commit_three(lenient)
    for path in data_of(lenient)[2]:
        flipped(path)
    await sb.objectstore.LocalStore(Path(lenient.primary.removeprefix("file://"))).put(f"fleet/{floor_key(3)}", [])
    with pytest.raises(CorruptSegmentError):
        async with sb.open_backend(lenient):
            pass


async def test_ranges_go_back_together_by_a_batch_of_the_whole_job(settings: sb.Settings) -> None:
    """As the error on executors advises. By themselves they find the damage one by one, each in its own part."""
    settings = replaced(settings, local=(), ranges_cached_max=0)
    segments, changes = Path(settings.primary.removeprefix("file://"), settings.job, "segments"), [("a", 1), ("b", 1)]
    async with open_range_owners() as owners:
        async with open_run(settings, 2) as run:
            await run.batch(owners, changes)
            before = set(tree_of(segments))
            await run.batch(owners, changes)
            for name in set(tree_of(segments)) - before:
                gone(segments / name)
            with pytest.raises(MissingObjectError):
                await run.batch(owners, changes)
        async with sb.open_backend(replaced(settings, fall_back_to_older=True)) as backend:
            sums = backend.value_state("sum", int)
            assert dict(sums) == {"a": 1, "b": 1}
            sums.update({"a": 20, "b": 20})
            await backend.checkpoint(backend.next_checkpoint_id)
        async with open_run(settings, 2) as run:
            await run.batch(owners, changes)
    async with sb.open_backend(settings, read_only=True) as backend:
        assert dict(backend.value_state("sum", int)) == {"a": 21, "b": 21}
