"""Small checkpoints travel in their commit: one request, and both copies all the same."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import statebackend as sb
from statebackend._checkpoint.snapshots import InlineEncoder
from statebackend._codec.change_sets.changes import ChangeSet
from statebackend._codec.segment import EncodedFrame
from statebackend._log.log_writer import HINT_EVERY
from statebackend._log.names import entry_key
from statebackend._threads import WorkerThreads
from statebackend.errors import CorruptSegmentError, FencedError, InputError, MissingObjectError, OutcomeUnknownError
from statebackend.ids import SequenceNumber
from statebackend.objectstore import LocalStore, MemoryStore
from statebackend.objectstore.scoped import CountingStore
from statebackend.settings import MiB
from statebackend.testing import Fail, FaultyStore
from statebackend.uploaders import PrimaryUploader
from tests.backend.conftest import tree_of
from tests.changelog.fakes import set_of
from tests.knobs import replaced


@pytest.fixture
def inline(with_settings: Callable[..., sb.Settings]) -> sb.Settings:
    """The job as it is by default."""
    return with_settings(inline_bytes_max=sb.Settings(job="x", primary="memory://x").inline_bytes_max)


def local_commits(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "local/job_fleet/taskowned/commits").iterdir())


async def commit(backend: sb.StateBackend, *numbers: int) -> sb.CheckpointInfo:
    """One change and one checkpoint for each number; what was said of the last one."""
    for number in numbers:
        backend.value_state("n", int)[number] = number
        info = await backend.checkpoint(number)
    return info


async def state_of(settings: sb.Settings, **options: object) -> dict[sb.Key, int]:
    async with sb.open_backend(settings, read_only=True, **options) as backend:  # type: ignore[arg-type]
        return dict(backend.value_state("n", int))


async def test_a_small_checkpoint_costs_one_request_in_all(inline: sb.Settings) -> None:
    """But for the hint's, every so many entries of the log. Merging, which goes on beside, is off here."""
    store = CountingStore(MemoryStore())
    async with sb.open_backend(replaced(inline, materialize_fan_in=0), store=store) as backend:
        before = store.requests.copy()
        infos = [await commit(backend, number) for number in range(1, HINT_EVERY + 2)]
    expected = {sequence: 2 if sequence == HINT_EVERY else 1 for sequence in range(1, HINT_EVERY + 2)}
    assert {info.sequence: info.requests for info in infos} == expected
    spent = store.requests - before
    assert spent == {"put_if_absent": HINT_EVERY + 1, "put": 1 + 1}  # and the hint once more on leaving
    assert all(info.changes == 1 for info in infos)


async def test_merging_adds_one_request_for_sixteen_small_checkpoints(inline: sb.Settings) -> None:
    """A PUT of all their changes. They are at hand, so nothing is read."""
    store = CountingStore(MemoryStore())
    async with sb.open_backend(inline, store=store) as backend:
        before = store.requests.copy()
        for number in range(1, HINT_EVERY + 2):
            await commit(backend, number)
            await backend._base_writer.settled()
    spent = store.requests - before
    merges = HINT_EVERY // inline.materialize_fan_in
    assert spent == {"put_if_absent": HINT_EVERY + 1, "put": 1 + 1 + merges}


async def test_nothing_inline_is_copied_forward(inline: sb.Settings) -> None:
    """The thousandth commit carries its own changes, and points to where the others lie."""
    store, content = MemoryStore(), random.Random(1).randbytes(20_000)
    async with sb.open_backend(inline, store=store) as backend:
        backend.value_state("t", bytes)["k"] = content
        first = await backend.checkpoint(1)
        second = await backend.checkpoint(2)
    assert first.primary_bytes > 20_000
    assert second.primary_bytes < 1_000
    assert [info.key async for info in store.list("fleet/segments/")] == []
    async with sb.open_backend(inline, store=store) as backend:
        assert backend.value_state("t", bytes)["k"] == content


@pytest.mark.parametrize("local", [True, False])
async def test_changes_come_back_from_the_commits_that_carry_them(
    inline: sb.Settings, with_settings: Callable[..., sb.Settings], local: bool
) -> None:
    """The newest commit is read once; the others like segments, local first, and every one can be opened."""
    settings = inline if local else with_settings(local=(), inline_bytes_max=1000)
    async with sb.open_backend(settings) as backend:
        info = await commit(backend, 1, 2, 3, 4)
        assert info.local is local
        assert (info.local_bytes > 0) is local
    store = CountingStore(LocalStore(Path(settings.primary.removeprefix("file://"))))
    async with sb.open_backend(settings, store=store, read_only=True) as backend:
        assert dict(backend.value_state("n", int)) == {1: 1, 2: 2, 3: 3, 4: 4}
        assert backend.restored is not None
        assert backend.restored.fallbacks == ()
        assert (backend.restored.files_local, backend.restored.files_primary) == ((4, 0) if local else (0, 3))
    hint_twice_and_newest = 3
    older = {} if local else {"get_range": 3}
    behind_a_hole = {"list": 1}
    assert store.requests == {"get": hint_twice_and_newest, "head": 1, **behind_a_hole, **older}
    assert await state_of(settings, checkpoint_id=2) == {1: 1, 2: 2}


async def test_a_lost_local_copy_of_a_commit_is_repaired(inline: sb.Settings, tmp_path: Path) -> None:
    """The newest one's without another request: it was read to find out what is needed."""
    async with sb.open_backend(inline) as backend:
        await commit(backend, 1, 2)
    copies = tmp_path / "local/job_fleet/taskowned/commits"
    before = {path.name: path.read_bytes() for path in copies.iterdir()}
    (copies / entry_key(1).removeprefix("commits/")).unlink()
    (copies / entry_key(2).removeprefix("commits/")).write_bytes(b"damaged")
    store = CountingStore(LocalStore(tmp_path / "primary"))
    async with sb.open_backend(inline, store=store) as backend:
        assert backend.restored is not None
        assert [(fallback.name, fallback.repaired) for fallback in backend.restored.fallbacks] == [
            (entry_key(1), True),
            (entry_key(2), True),
        ]
        assert backend.restored.files_primary == 1
        assert store.requests["get"] == 4  # the hint twice, the newest commit, the one before
        assert {path.name: path.read_bytes() for path in copies.iterdir()} == before
        assert (await backend.checkpoint(3)).local


async def test_the_local_root_keeps_the_commits_that_are_needed(inline: sb.Settings, tmp_path: Path) -> None:
    """Those that carry changes, and the newest; an empty one goes when the next is committed."""
    async with sb.open_backend(inline) as backend:
        await commit(backend, 1)
        await backend.checkpoint(2)
        await backend.checkpoint(3)
    await state_of(inline)
    async with sb.open_backend(inline):  # removes what was still to be removed
        assert local_commits(tmp_path) == [entry_key(sequence).removeprefix("commits/") for sequence in (1, 3)]
    for name in local_commits(tmp_path):
        primary = tmp_path / "primary/fleet/commits" / name
        assert (tmp_path / "local/job_fleet/taskowned/commits" / name).read_bytes() == primary.read_bytes()


async def test_the_local_copy_never_says_which_commit_is_the_newest(inline: sb.Settings, tmp_path: Path) -> None:
    """One that lies there and not in the primary is not believed. It stays until the log has passed its place."""
    async with sb.open_backend(inline) as backend:
        await commit(backend, 1)
    copies = tmp_path / "local/job_fleet/taskowned/commits"
    unknown = entry_key(5).removeprefix("commits/")
    (copies / unknown).write_bytes((copies / entry_key(1).removeprefix("commits/")).read_bytes())
    async with sb.open_backend(inline) as backend:
        assert backend.newest is not None
        assert backend.newest.checkpoint_id == 1
        assert unknown in local_commits(tmp_path)
        for checkpoint_id in range(2, 7):
            await backend.checkpoint(checkpoint_id)
    async with sb.open_backend(inline) as backend:
        assert backend.newest is not None
        assert backend.newest.checkpoint_id == 6
        assert unknown not in local_commits(tmp_path)


async def test_the_copy_of_a_fenced_commit_is_removed(inline: sb.Settings, tmp_path: Path) -> None:
    """It would say what never was."""
    async with sb.open_backend(inline) as zombie:
        await commit(zombie, 1)
        async with sb.open_backend(inline):
            pass
        with pytest.raises(FencedError):
            await commit(zombie, 2)
    assert local_commits(tmp_path) == [entry_key(1).removeprefix("commits/")]
    assert await state_of(inline) == {1: 1}


async def test_a_commit_without_its_copy_is_not_local(inline: sb.Settings) -> None:
    """The disk refuses: the checkpoint is made, the copy is counted as dropped, and nobody says that it is there."""
    dropped: list[str] = []

    class Observer(sb.Observer):
        def local_copy_dropped(self, name: str, reason: str) -> None:
            dropped.append(name)

    disk = FaultyStore(MemoryStore(), [Fail(operation="put", key=entry_key(1))])
    async with sb.open_backend(inline, local_stores=[disk], observer=Observer()) as backend:
        first = await commit(backend, 1)
        second = await commit(backend, 2)
    assert (first.local, first.local_bytes) == (False, 0)
    assert not second.local  # it needs the first one's changes
    assert second.local_bytes > 0
    assert dropped == [entry_key(1)]


async def test_an_uploader_of_your_own_gets_everything(inline: sb.Settings) -> None:
    """It may encrypt: nothing of the state goes round it, however small."""
    uploaded: list[str] = []

    class Mine(PrimaryUploader):
        async def upload(self, segment: sb.abc.Segment) -> sb.abc.UploadedSegment:
            uploaded.append(segment.name)
            return await super().upload(segment)

    store = MemoryStore()
    async with sb.open_backend(inline, store=store, uploader=lambda primary, _: Mine(primary)) as backend:
        backend.value_state("secret", str)["k"] = "a secret"
        await backend.checkpoint(1)
    assert len(uploaded) == 1
    async for info in store.list("fleet/commits/"):
        assert b"a secret" not in await store.get(info.key)


@pytest.mark.parametrize("bytes_max", [0, 100, 5_000, 10**6])
async def test_whatever_the_limit_the_state_is_the_same(
    with_settings: Callable[..., sb.Settings], bytes_max: int
) -> None:
    """Some checkpoints inline, some in segments, in turns; one larger than the limit never inline."""
    settings = with_settings(inline_bytes_max=bytes_max, local=())
    async with sb.open_backend(settings) as backend:
        texts = backend.value_state("t", str)
        for number, size in enumerate([10, 3_000, 20, 60_000, 0, 10]):
            if size:
                texts[number] = str(number) * size
            info = await backend.checkpoint(number)
            assert (info.requests == 1) == (size == 0 or size < bytes_max)
    async with sb.open_backend(settings) as backend:
        found = dict(backend.value_state("t", str))
    assert found == {number: str(number) * size for number, size in enumerate([10, 3_000, 20, 60_000, 0, 10]) if size}


@pytest.mark.parametrize(
    ("primary", "chosen", "bytes_max"),
    [
        ("file:///data", None, 2**20),
        ("s3://bucket/data", None, 2**16),
        ("memory://data", None, 2**16),
        ("file:///data", 0, 0),
        ("s3://bucket/data", 2**20, 2**20),
    ],
)
def test_the_default_limit_is_that_of_the_kind_of_primary(primary: str, chosen: int | None, bytes_max: int) -> None:
    """A request of S3 has a price, a file of its own has to be synced. An explicit limit wins, 0 too."""
    assert sb.Settings(job="fleet", primary=primary, inline_bytes_max=chosen).inline_bytes == bytes_max


@pytest.mark.parametrize(("content", "requests"), [(b"x" * 30_000, 1), (random.Random(1).randbytes(30_000), 2)])
async def test_what_counts_is_the_size_of_the_encoded_changes(
    with_settings: Callable[..., sb.Settings], content: bytes, requests: int
) -> None:
    """Three times the limit before compression. If it fits after that it is inline, whatever the estimate says."""
    settings = with_settings(inline_bytes_max=10_000, local=())
    async with sb.open_backend(settings) as backend:
        backend.value_state("t", bytes)["k"] = content
        assert (await backend.checkpoint(1)).requests == requests
    async with sb.open_backend(settings) as backend:
        assert backend.value_state("t", bytes)["k"] == content


@pytest.mark.parametrize("threshold_bytes", [MiB, 100_000, 40_000])
async def test_pieces_that_were_sealed_early_are_carried_by_the_commit_as_well(
    with_settings: Callable[..., sb.Settings], threshold_bytes: int
) -> None:
    """None of them was uploaded yet: a lower pre-emptive threshold must not cost a segment."""
    settings = with_settings(
        inline_bytes_max=MiB, preemptive_persist_threshold_bytes=threshold_bytes, local=(), compression="none"
    )
    numbers = dict.fromkeys(range(20_000), 7)
    async with sb.open_backend(settings) as backend:
        state = backend.value_state("n", int)
        for checkpoint_id in range(2):
            state.update(numbers)
            info = await backend.checkpoint(checkpoint_id)
            assert (info.requests, info.changes) == (1, 20_000)
    assert await state_of(settings) == numbers


async def test_a_try_that_failed_is_not_repeated_at_once() -> None:
    """One thread encodes it alone, before an upload begins. The next try comes after some checkpoints."""
    threads = WorkerThreads(cpu_threads_max=1, io_threads_max=1)
    encoder = InlineEncoder(bytes_max=40_000, compression="none", threads=threads)
    tried: list[bool] = []

    class Log:
        """Has one change set of 50,000 bytes."""

        async def take_inline(self, from_: SequenceNumber, bytes_max: int) -> list[ChangeSet] | None:
            tried.append(bytes_max >= 50_000)
            return [set_of(50_000)] if tried[-1] else None

        def encoded(self, frames: Sequence[EncodedFrame]) -> None:
            assert [frame.size_bytes > 50_000 for frame in frames] == [True], "kept, for the upload"

    for _ in range(60):
        assert await encoder.take(Log(), SequenceNumber(0)) is None  # type: ignore[arg-type]
    assert tried[0]
    assert 2 <= sum(tried) <= 6


async def test_what_was_taken_inline_and_not_committed_is_in_the_next_commit(inline: sb.Settings) -> None:
    """A commit that was refused before it was sent: nothing lost, nothing twice."""
    async with sb.open_backend(inline) as backend:
        backend.value_state("n", int)[1] = 1
        with pytest.raises(InputError):
            await backend.checkpoint(1, source=sb.SourceMark("q", "wrong"))  # type: ignore[arg-type]  # the user's bug
        assert (await commit(backend, 2)).changes == 2
    assert await state_of(inline) == {1: 1, 2: 2}


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_an_unknown_outcome_keeps_what_the_commit_may_need(
    inline: sb.Settings, tmp_path: Path, moment: str
) -> None:
    """The copy is there if the commit is; opening again asks the primary."""
    store = FaultyStore(LocalStore(tmp_path / "primary"))
    async with sb.open_backend(inline, store=store) as backend:
        await commit(backend, 1)
        store.plan += [Fail(operation="put_if_absent", moment=moment), Fail(operation="get")]  # type: ignore[arg-type]
        with pytest.raises(OutcomeUnknownError):
            await commit(backend, 2)
    expected = {1: 1} if moment == "before" else {1: 1, 2: 2}
    async with sb.open_backend(inline) as backend:
        assert dict(backend.value_state("n", int)) == expected
        assert (await commit(backend, 3)).local


@pytest.mark.parametrize("damage", ["lost", "damaged"])
async def test_a_carrier_without_a_good_copy_is_named(
    with_settings: Callable[..., sb.Settings], tmp_path: Path, damage: str
) -> None:
    """An older commit that a newer one points into is needed like a segment."""
    settings = with_settings(local=(), inline_bytes_max=100_000)
    async with sb.open_backend(settings) as backend:
        await commit(backend, 1, 2)
    path = tmp_path / "primary/fleet" / entry_key(1)
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.unlink()
    if damage == "damaged":
        path.write_bytes(content)
    with pytest.raises(MissingObjectError if damage == "lost" else CorruptSegmentError) as caught:
        await state_of(settings)
    assert caught.value.facts["object"] == entry_key(1)
    assert f"fleet/{entry_key(2)}" in tree_of(tmp_path / "primary")
