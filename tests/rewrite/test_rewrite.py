"""A rewrite gives a job another number of key groups, and changes nothing else of it."""

from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import statebackend as sb
from statebackend._log.outbox import Output
from statebackend.errors import FencedError, InputError, SettingsError, StoreAccessError, StoreUnavailableError
from statebackend.objectstore import MemoryStore
from statebackend.testing import Fail, FaultyStore, Hold, run_virtual
from statebackend.testing.virtual_time import settle
from tests.log.swept import HandClock
from tests.rewrite.jobs import (
    BATCH,
    JOB,
    KINDS,
    SAMPLE,
    Write,
    assert_placed,
    newest_commit,
    objects_of,
    opened,
    read,
    settings_of,
    work,
)

KEYS = st.sampled_from(["a", "b", "c", "", 7, -1, ("x", 1), b"k"])
WRITES = st.lists(st.tuples(st.sampled_from(KINDS), KEYS, st.integers(-3, 3)), max_size=15)
COUNTS = st.sampled_from([1, 2, 3, 16, 100, 128])
TUNINGS = st.fixed_dictionaries(
    {
        "inline_bytes_max": st.sampled_from([0, 100_000]),
        "materialize_handles_max": st.sampled_from([0, 1, 2]),
        "compression": st.sampled_from(["none", "zstd"]),
    }
)


@hypothesis_settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(COUNTS, COUNTS, TUNINGS, st.lists(WRITES, min_size=1, max_size=4), WRITES)
@run_virtual
async def test_all_that_was_read_before_is_read_after(
    before: int, after: int, tuning: dict[str, Any], batches: list[list[Write]], later: list[Write]
) -> None:
    """State of every kind, with any two numbers; and state written after it survives the rewrite back."""
    store = MemoryStore()
    expected = await work(settings_of(before, **tuning), store, *batches)
    report = await sb.rewrite(settings_of(after, **tuning), store=store)
    assert report.is_needed == (before != after)
    await assert_placed(store, after)
    assert await read(settings_of(after), store) == expected
    expected = await work(settings_of(after, **tuning), store, later)
    await sb.rewrite(settings_of(before), store=store)
    await assert_placed(store, before)
    assert await read(settings_of(before), store) == expected


@pytest.mark.parametrize(("before", "after"), [(16, 128), (128, 5)])
async def test_all_comes_through_rocksdb_too(before: int, after: int, tmp_path: Path) -> None:
    """A rewrite chooses its own table, so its state may be larger than memory."""
    pytest.importorskip("rocksdict", reason="the extra rocksdb")
    store = MemoryStore()
    expected = await work(settings_of(before), store, SAMPLE, SAMPLE)
    await sb.rewrite(settings_of(after, table="rocksdb", table_dir=str(tmp_path)), store=store)
    assert await read(settings_of(after), store) == expected
    await assert_placed(store, after)


async def test_the_commit_is_a_child_of_the_newest_and_of_the_same_batch() -> None:
    """The next id, and the source mark by which a sink knows what it committed last."""
    store = MemoryStore()
    await work(settings_of(16), store, SAMPLE, SAMPLE)
    before = await newest_commit(store)
    report = await sb.rewrite(settings_of(64), store=store)
    commit = await newest_commit(store)
    assert (commit.parent, commit.checkpoint_id, commit.source) == (before.sequence, 2, BATCH)
    assert (commit.states, commit.epoch) == (before.states, before.epoch + 1)
    assert (report.read_id, report.checkpoint_id) == (1, 2)
    assert (report.max_parallelism_before, report.max_parallelism) == (16, 64)
    assert report.keys["value"] == 8
    assert report.segments == len({base.segment for part in commit.ranges for base in part.bases}) == 1
    async with opened(settings_of(64), store) as (backend, states):
        assert [each.checkpoint_id async for each in backend.history()] == [2, 1, 0]
        states.value["a"] = 99
        await backend.checkpoint(3)


async def test_a_state_that_nobody_declares_comes_through() -> None:
    """So do values of a class that cannot be imported: their cells are carried over as bytes."""
    store = MemoryStore()

    class Leg(msgspec.Struct):
        origin: str

    async with sb.open_backend(settings_of(16), store=store) as backend:
        backend.value_state("legs", Leg)["k"] = Leg("EWR")
        await backend.checkpoint(0)
    await sb.rewrite(settings_of(20), store=store)
    async with sb.open_backend(settings_of(20), store=store) as backend:
        backend.value_state("other", int)["k"] = 1
        await backend.checkpoint(2)
    async with sb.open_backend(settings_of(20), store=store) as backend:
        assert backend.value_state("legs", Leg)["k"] == Leg("EWR")


@pytest.mark.parametrize("inline_bytes_max", [0, 100_000])
async def test_output_that_is_not_known_to_be_published_is_published_after_it(inline_bytes_max: int) -> None:
    """The same rows under the same idempotency key, inline or not; published output is not carried over."""
    store, settings = MemoryStore(), settings_of(16, inline_bytes_max=inline_bytes_max)
    async with opened(settings, store) as (backend, states):
        for number in range(2):
            states.value["a"] = number
            output = Output(b"schema", 1, (b"rows %d" % number,))
            await backend.checkpoint(number, source=sb.SourceMark("query", number), output=output)
            if number == 0:
                taken = await backend.take_output()
                assert taken is not None
                backend.published(taken[0])
    await sb.rewrite(settings_of(64), store=store)
    async with opened(settings_of(64), store) as (backend, _):
        taken = await backend.take_output()
        assert taken is not None
        assert (taken[0].source, [bytes(part) for part in taken[1]]) == (sb.SourceMark("query", 1), [b"rows 1"])
        backend.published(taken[0])
        assert await backend.take_output() is None


async def test_a_second_run_does_nothing() -> None:
    """It claims nothing, writes nothing, and reports that there is nothing to do."""
    store = MemoryStore()
    await work(settings_of(16), store)
    await sb.rewrite(settings_of(64), store=store)
    before = await objects_of(store)
    report = await sb.rewrite(settings_of(64), store=store)
    assert (report.is_needed, report.checkpoint_id, report.read_id) == (False, None, 1)
    assert await objects_of(store) == before


async def test_a_dry_run_reads_all_and_writes_nothing() -> None:
    """A writer that has the job open is not fenced."""
    store = MemoryStore()
    async with opened(settings_of(16, inline_bytes_max=0), store) as (backend, states):
        states.write(SAMPLE)
        await backend.checkpoint(0)
        before = await objects_of(store)
        report = await sb.rewrite(settings_of(64), store=store, dry_run=True)
        assert await objects_of(store) == before
        assert (report.is_needed, report.checkpoint_id, report.segments) == (True, None, 0)
        assert report.keys["list"] == 8
        assert report.bytes_read > 0
        await backend.checkpoint(1)


async def test_a_dry_run_finds_what_is_damaged() -> None:
    """Before the stream is stopped."""
    store = MemoryStore()
    await work(settings_of(16, inline_bytes_max=0), store)
    (key,) = [info.key async for info in store.list(f"{JOB}/segments/")]
    await store.put(key, [b"x" + (await store.get(key))[1:]])
    with pytest.raises(sb.errors.CorruptSegmentError):
        await sb.rewrite(settings_of(64), store=store, dry_run=True)


async def test_a_stream_that_was_not_stopped_is_fenced() -> None:
    """Its open batch is not in the rewritten state; Spark delivers it again."""
    store = MemoryStore()
    expected = await work(settings_of(16), store)
    async with opened(settings_of(16), store) as (backend, states):
        states.value["a"] = 99
        await sb.rewrite(settings_of(64), store=store)
        with pytest.raises(FencedError):
            await backend.checkpoint(backend.next_checkpoint_id)
    assert await read(settings_of(64), store) == expected


async def test_a_rewrite_is_fenced_if_the_job_is_opened_meanwhile() -> None:
    """The job is unchanged, and the rewrite deletes nothing: a fenced writer never does. It can be run again."""
    store = MemoryStore()
    await work(settings_of(16), store)
    hold = Hold(operation="put", key="*/segments/*")
    fenced: list[FencedError] = []

    async def rewrite() -> None:
        try:
            await sb.rewrite(settings_of(64), store=FaultyStore(store, [hold]))
        except FencedError as error:
            fenced.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rewrite)
        await hold.reached.wait()
        async with opened(settings_of(16), store) as (backend, states):
            states.value["a"] = 99
            await backend.checkpoint(backend.next_checkpoint_id)
            expected = states.read()
        hold.release()
    assert len(fenced) == 1
    assert any(key.startswith("segments/") for key in await objects_of(store))
    assert await read(settings_of(16), store) == expected
    await sb.rewrite(settings_of(64), store=store)
    assert await read(settings_of(64), store) == expected


@pytest.mark.parametrize("read_only", [True, False])
async def test_the_old_number_is_refused_from_then_on(read_only: bool) -> None:
    """The refused call claims nothing."""
    store = MemoryStore()
    await work(settings_of(16), store)
    await sb.rewrite(settings_of(64), store=store)
    before = await objects_of(store)
    with pytest.raises(SettingsError) as caught:
        await (read if read_only else work)(settings_of(16), store)
    assert caught.value.facts == {"max_parallelism": 16, "committed": 64}
    assert await objects_of(store) == before


async def test_an_older_checkpoint_keeps_its_number() -> None:
    """With the new number it is refused: its keys would be looked up in the wrong groups."""
    store = MemoryStore()
    async with opened(settings_of(16), store) as (backend, states):
        states.value["a"] = 1
        await backend.checkpoint(0)
        states.value["a"] = 2
        await backend.checkpoint(1, savepoint="before")
    await sb.rewrite(settings_of(4), store=store)
    for options, expected in (({"checkpoint_id": 0}, 1), ({"checkpoint_id": 1}, 2), ({"savepoint": "before"}, 2)):
        assert (await read(settings_of(16), store, **options))["value"] == {"a": expected}
        with pytest.raises(SettingsError):
            await read(settings_of(4), store, **options)
    async with opened(settings_of(16), store, savepoint="before") as (backend, states):  # the way back
        await backend.checkpoint(3)
    assert (await newest_commit(store)).max_parallelism == 16


@pytest.mark.parametrize("options", [{"checkpoint_id": 0}, {"savepoint": "first"}])
async def test_an_older_checkpoint_is_rewritten_if_asked_for(options: dict[str, Any]) -> None:
    """The rewrite begins a branch there, as opening it would, with the source mark of its own batch."""
    store = MemoryStore()
    async with opened(settings_of(16), store) as (backend, states):
        states.value["a"] = 1
        await backend.checkpoint(0, source=BATCH, savepoint="first")
        states.value["a"] = 2
        await backend.checkpoint(1)
    await sb.rewrite(settings_of(64), store=store, **options)
    commit = await newest_commit(store)
    assert (commit.checkpoint_id, commit.source) == (2, BATCH)
    assert (await read(settings_of(64), store))["value"] == {"a": 1}
    with pytest.raises(InputError):
        await sb.rewrite(settings_of(32), store=store, checkpoint_id=0, savepoint="first")


@pytest.mark.parametrize("claimed", [False, True])
async def test_a_job_without_a_checkpoint_is_refused(claimed: bool) -> None:
    """A mistyped name creates no job."""
    store = MemoryStore()
    if claimed:
        async with sb.open_backend(settings_of(16), store=store):
            pass
    before = await objects_of(store)
    for dry_run in (True, False):
        with pytest.raises(InputError):
            await sb.rewrite(settings_of(64), store=store, dry_run=dry_run)
    assert await objects_of(store) == before


async def test_local_copies_are_read_and_the_bases_get_theirs_when_the_job_is_opened(tmp_path: Path) -> None:
    """A rewrite reads local copies without their lock, and writes none: it may run on any host."""
    store = MemoryStore()
    local = {"local": (str(tmp_path / "local"),), "inline_bytes_max": 0}
    expected = await work(settings_of(16, **local), store)
    counting = FaultyStore(store)
    await sb.rewrite(settings_of(64, **local), store=counting)
    assert ("get", "segments") not in {(operation, key.split("/")[1]) for operation, key in counting.calls}
    async with opened(settings_of(64, **local), store) as (backend, states):
        assert states.read() == expected
        assert backend.restored is not None
        assert [fallback.repaired for fallback in backend.restored.fallbacks] == [True]


async def test_it_tells_how_far_it_is() -> None:
    """The shares of each phase grow to 1."""
    store = MemoryStore()
    numbers: list[list[Write]] = [[("value", f"{turn} {each}", each) for each in range(500)] for turn in range(3)]
    await work(settings_of(16, inline_bytes_max=0), store, *numbers)
    told: list[sb.reports.Progress] = []
    report = await sb.rewrite(
        settings_of(64, in_flight_bytes_max=4096, persist_size_threshold_bytes=0), store=store, tell=told.append
    )
    reading, writing = ([each for each in told if each.phase == phase] for phase in ("reading", "writing"))
    assert [each.phase for each in told] == ["reading"] * len(reading) + ["writing"] * len(writing)
    for phase in (reading, writing):
        shares = [each.share for each in phase]
        assert shares == sorted(shares)
        assert shares[-1] == 1.0
        assert phase[-1].changes == 1500
    assert len(reading) == 3
    assert (reading[-1].size_bytes, writing[-1].size_bytes) == (report.bytes_read, report.bytes_written)


async def test_a_sweep_beside_it_touches_neither_what_it_reads_nor_what_it_writes() -> None:
    """However old everything is, and however few checkpoints are retained: even if an older one is rewritten."""
    clock = HandClock()
    store = MemoryStore(clock=clock)
    settings = settings_of(16, inline_bytes_max=0, checkpoints_retained=1)
    after = settings_of(64, in_flight_bytes_max=4, persist_size_threshold_bytes=0, checkpoints_retained=1)
    async with opened(settings, store, clock=clock) as (backend, states):
        states.write([("value", f"{number} {'x' * 1000}", number) for number in range(250)])
        await backend.checkpoint(0)
        expected = states.read()
        states.value.clear()
        await backend.checkpoint(1)
    clock.now_s += 48 * 3600.0
    hold = Hold(operation="put", key="*/segments/*", nth=2)
    async with anyio.create_task_group() as tasks:

        async def rewrite() -> None:
            await sb.rewrite(after, store=FaultyStore(store, [hold]), clock=clock, checkpoint_id=0)

        tasks.start_soon(rewrite)
        await hold.reached.wait()
        clock.now_s += 48 * 3600.0
        await sb.sweep(after, dry_run=False, min_age_s=0.0, store=store, clock=clock)
        hold.release()
    assert await read(after, store) == expected
    await assert_placed(store, 64)


SEGMENT = "*/segments/*"


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_what_was_stored_is_deleted_when_the_rest_cannot_be(moment: Any) -> None:
    """The second base fails, or only its answer is lost: the first one is deleted, and the job is unchanged."""
    store = MemoryStore()
    large = {"in_flight_bytes_max": 4, "persist_size_threshold_bytes": 0, "upload__attempts_max": 1}
    batch: list[Write] = [("value", f"{each} {'x' * 1000}", each) for each in range(250)]
    expected = await work(settings_of(16), store, batch)
    before = {key for key in await objects_of(store) if key.startswith("segments/")}
    fault = Fail(operation="put", key=SEGMENT, nth=2, moment=moment)
    faulty = FaultyStore(store, [fault])
    with pytest.raises(StoreUnavailableError):
        await sb.rewrite(settings_of(64, **large), store=faulty)
    assert fault.matched == 2
    assert {key for key in await objects_of(store) if key.startswith("segments/")} == before
    assert await read(settings_of(16), store) == expected


@run_virtual
async def test_what_was_stored_is_deleted_when_it_is_cancelled() -> None:
    """Between two bases."""
    store = MemoryStore()
    large = {"in_flight_bytes_max": 4, "persist_size_threshold_bytes": 0}
    await work(settings_of(16), store, [("value", f"{each} {'x' * 1000}", each) for each in range(250)])
    before = {key for key in await objects_of(store) if key.startswith("segments/")}
    hold = Hold(operation="put", key=SEGMENT, nth=2)
    async with anyio.create_task_group() as tasks:

        async def rewrite() -> None:
            await sb.rewrite(settings_of(64, upload__timeout_s=0, **large), store=FaultyStore(store, [hold]))

        tasks.start_soon(rewrite)
        await hold.reached.wait()
        assert {key for key in await objects_of(store) if key.startswith("segments/")} > before
        tasks.cancel_scope.cancel()
    await settle()
    assert {key for key in await objects_of(store) if key.startswith("segments/")} == before


async def test_a_commit_that_is_refused_takes_the_bases_with_it() -> None:
    """The coordinator looked for the commit, and it does not exist."""
    store = MemoryStore()
    expected = await work(settings_of(16), store)
    refuse = Fail(operation="put_if_absent", nth=2, error=StoreAccessError("refused by a test"))
    with pytest.raises(StoreAccessError):
        await sb.rewrite(settings_of(64), store=FaultyStore(store, [refuse]))
    assert [key for key in await objects_of(store) if key.startswith("segments/")] == []
    assert await read(settings_of(16), store) == expected
