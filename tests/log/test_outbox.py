"""The outbox: what a commit names can be published, by the next process to open the job, until that is done."""

import asyncio

import anyio
import msgspec
import pytest

import statebackend as sb
from statebackend._codec.staged import encode_part
from statebackend._log.names import entry_key
from statebackend._log.outbox import Output, Staged, joined
from statebackend.errors import (
    BackendClosedError,
    CorruptObjectError,
    FencedError,
    InputError,
    MissingObjectError,
    StoreAccessError,
    UploadError,
)
from statebackend.ids import Handle, SourceMark
from statebackend.objectstore.scoped import CountingStore
from statebackend.testing import Fail, FaultyStore, Hold
from statebackend.testing.virtual_time import run_virtual
from tests.committed import stand_on
from tests.log.swept import JOB, Job, put

QUERY = "query"
INLINE, OBJECTS = 100_000, 0


def source(batch_id: int) -> SourceMark:
    return SourceMark(QUERY, batch_id, "run")


def output(*streams: bytes) -> Output:
    return Output(b"schema", len(streams), streams)


async def batch(backend: sb.StateBackend, batch_id: int, *streams: bytes) -> None:
    """A batch that changes the state and puts out these streams."""
    await put(backend, batch_id, source=source(batch_id), output=output(*streams))


async def publish_all(backend: sb.StateBackend) -> list[tuple[int, list[bytes]]]:
    """Publish what there is, oldest first: batch ids and their streams."""
    found = []
    while (taken := await backend.take_output()) is not None:
        staged, streams = taken
        found.append((staged.source.batch_id, [bytes(stream) for stream in streams]))
        backend.published(staged)
    return found


@pytest.fixture(params=[INLINE, OBJECTS], ids=["in the commit", "as objects"])
def job(request: pytest.FixtureRequest) -> Job:
    return Job(inline_bytes_max=request.param)


async def test_output_can_be_published_from_its_commit_on_and_not_before(job: Job) -> None:
    """By the writer who made it, without reading it back."""
    async with job.backend(Fail(operation="get_range")) as backend:
        assert await publish_all(backend) == []
        await batch(backend, 0, b"one", b"two")
        assert await publish_all(backend) == [(0, [b"one", b"two"])]
        assert await publish_all(backend) == []


async def test_output_that_was_not_reported_as_published_is_there_when_the_job_is_opened_next(job: Job) -> None:
    """Byte for byte, and again for the one after him."""
    async with job.backend() as backend:
        await batch(backend, 0, b"one", b"two")
    for _ in range(2):
        async with job.backend() as backend:
            assert await publish_all(backend) == [(0, [b"one", b"two"])]


async def test_the_next_commit_forgets_what_was_published_and_names_what_was_not(job: Job) -> None:
    """A commit that is made by hand, without any output, included: nothing is lost by not being looked at."""
    async with job.backend() as backend:
        await batch(backend, 0, b"published")
        assert await publish_all(backend) == [(0, [b"published"])]
        await batch(backend, 1, b"left")
    async with job.backend() as backend:
        await put(backend, 7)
    async with job.backend() as backend:
        await batch(backend, 2, b"own", b"again own")
    async with job.backend() as backend:
        assert await publish_all(backend) == [(1, [b"left"]), (2, [b"own", b"again own"])]
        await put(backend, 8)
    async with job.backend() as backend:
        assert await publish_all(backend) == []
    outboxes = [[each.source.batch_id for each in commit.outbox] for commit in (await job.commits()).values()]
    assert outboxes == [[0], [1], [1], [1, 2], []]


async def test_output_without_rows_is_published_too() -> None:
    """A place that numbers its batches is told of this one; nothing is stored for it but the commit."""
    job = Job(inline_bytes_max=OBJECTS)
    async with job.backend() as backend:
        await batch(backend, 0)
    assert await job.keys("outbox/") == []
    async with job.backend() as backend:
        taken = await backend.take_output()
        assert taken is not None
        assert (taken[0].rows, taken[0].schema, taken[1]) == (0, b"schema", ())


@pytest.mark.parametrize(("inline_bytes_max", "puts"), [(INLINE, 0), (OBJECTS, 2)])
async def test_small_output_costs_no_request(inline_bytes_max: int, puts: int) -> None:
    """The commit carries it. What is larger is an object for each part, named by the epoch."""
    job = Job(inline_bytes_max=inline_bytes_max)
    store = CountingStore(job.store)
    async with sb.open_backend(job.settings, store=store) as backend:
        before = store.requests.copy()
        info = await backend.checkpoint(0, source=source(0), output=output(b"one", b"two"))
        assert dict(store.requests - before) == {"put_if_absent": 1} | ({"put": puts} if puts else {})
    names = [key.removeprefix("outbox/") for key in await job.keys("outbox/")]
    assert [name[:18] for name in names] == ["00000001-00000000-", "00000001-00000001-"][:puts]
    claim = f"{JOB}/commits/{0:012d}"
    stored = {entry.key: entry.size_bytes async for entry in job.store.list(f"{JOB}/")}
    assert info.primary_bytes == sum(stored.values()) - stored[claim] - stored.get(f"{JOB}/newest", 0)


async def test_a_fenced_writer_publishes_nothing(job: Job) -> None:
    """It finds out before it publishes: what it has committed is for the new writer to publish."""
    async with job.backend() as old:
        await batch(old, 0, b"rows")
        async with job.backend() as new:
            with pytest.raises(FencedError):
                await old.take_output()
            assert await publish_all(new) == [(0, [b"rows"])]


async def test_a_writer_that_has_slept_long_looks_twice(job: Job) -> None:
    """Its place in the log may have been taken and swept meanwhile."""
    async with job.backend() as old:
        await batch(old, 0, b"rows")
        async with job.backend() as new:
            for value in range(3):
                await put(new, value)
            job.pass_time(2 * 3600.0)
            await put(new, 4)
        await job.sweep()
        assert f"commits/{2:012d}" not in await job.keys("commits/")
        with pytest.raises(FencedError):
            await old.take_output()


@pytest.mark.parametrize("slept_s", [0.0, 2 * 3600.0])
async def test_output_is_taken_beside_a_commit_of_ones_own(job: Job, slept_s: float) -> None:
    """It lies there already, its answer is on its way. It was taken for that of another writer."""
    hold = Hold(operation="put_if_absent", key=f"*{entry_key(2)}", moment="after")
    async with job.backend(hold) as backend, anyio.create_task_group() as tasks:
        await batch(backend, 0, b"rows")
        tasks.start_soon(put, backend, 1)
        await hold.reached.wait()
        job.pass_time(slept_s)
        assert await publish_all(backend) == [(0, [b"rows"])]
        hold.release()


async def test_a_writer_that_is_fenced_behind_its_own_commit_publishes_nothing(job: Job) -> None:
    """The commit lies there without its answer, and the claim of another writer behind it."""
    hold = Hold(operation="put_if_absent", key=f"*{entry_key(2)}", moment="after")
    async with job.backend(hold) as backend, anyio.create_task_group() as tasks:
        await batch(backend, 0, b"rows")
        tasks.start_soon(put, backend, 1)
        await hold.reached.wait()
        try:
            async with job.backend() as new:
                with pytest.raises(FencedError):
                    await backend.take_output()
                assert await publish_all(new) == [(0, [b"rows"])]
        finally:
            hold.release()


async def test_two_outputs_of_one_source_are_two(job: Job) -> None:
    """A caller that uses a source twice gets the rows of each, and not those of the second twice."""
    async with job.backend() as backend:
        for streams in ((b"one",), (b"two",)):
            await batch(backend, 0, *streams)
        assert await publish_all(backend) == [(0, [b"one"]), (0, [b"two"])]


async def test_a_backend_that_was_left_publishes_nothing(job: Job) -> None:
    async with job.backend() as backend:
        await batch(backend, 0, b"rows")
    with pytest.raises(BackendClosedError):
        await backend.take_output()


async def test_a_reader_publishes_nothing(job: Job) -> None:
    async with job.backend() as backend:
        await batch(backend, 0, b"rows")
    async with job.backend(read_only=True) as reader:
        with pytest.raises(InputError):
            await reader.take_output()


async def test_output_needs_a_source(job: Job) -> None:
    """Nothing is written, and the next checkpoint has the changes."""
    async with job.backend() as backend:
        before = await job.keys()
        with pytest.raises(InputError):
            await put(backend, 7, output=output(b"rows"))
        assert await job.keys() == before
        await batch(backend, 0, b"rows")
    assert await job.read() == 0


async def test_output_of_a_batch_that_was_not_committed_is_not_published(job: Job) -> None:
    """Whatever was staged: the commit is the only moment at which it comes to exist."""
    refused = Fail(operation="put_if_absent", key="*/commits/*2", error=StoreAccessError("no"))
    async with job.backend(refused) as backend:
        await batch(backend, 0, b"rows")
        await publish_all(backend)
        with pytest.raises(StoreAccessError):
            await batch(backend, 1, b"never", b"published")
    async with job.backend() as backend:
        assert await publish_all(backend) == [(0, [b"rows"])]


async def test_a_part_that_cannot_be_stored_is_tried_again_under_another_name() -> None:
    """The lost answer's object is removed, and nothing but what the commit names is left."""
    job = Job(inline_bytes_max=OBJECTS)
    async with job.backend(Fail(operation="put", key="*/outbox/*", nth=1, moment="after")) as backend:
        await batch(backend, 0, b"rows")
    (commit,) = (await job.commits()).values()
    assert await job.keys("outbox/") == [part.key for part in commit.outbox[0].parts]
    assert commit.outbox[0].parts[0].key.startswith("outbox/00000001-00000001-")


@run_virtual
async def test_a_part_that_is_late_is_joined_by_another_attempt() -> None:
    """And what the late one stores after all is removed."""
    job = Job(inline_bytes_max=OBJECTS)
    hold = Hold(operation="put", key="*/outbox/*", nth=1)
    async with job.backend(hold) as backend:
        await batch(backend, 0, b"rows")
    (commit,) = (await job.commits()).values()
    assert await job.keys("outbox/") == [part.key for part in commit.outbox[0].parts]


@run_virtual
async def test_of_two_attempts_that_end_at_once_one_is_removed() -> None:
    """Both have stored the part, and both are told so in the same turn."""
    job = Job(inline_bytes_max=OBJECTS)
    hold = Hold(operation="put", key="*/outbox/*", moment="after")
    async with job.backend(hold) as backend, anyio.create_task_group() as tasks:
        tasks.start_soon(batch, backend, 0, b"rows")
        await anyio.sleep(1.5)
        assert hold.held == 2
        hold.release()
    (commit,) = (await job.commits()).values()
    assert await job.keys("outbox/") == [part.key for part in commit.outbox[0].parts]


async def test_rows_that_cannot_be_staged_fail_the_checkpoint() -> None:
    """Nothing is committed; the batch comes again."""
    job = Job(inline_bytes_max=OBJECTS, upload__primary_outage_s=0.0)
    async with job.backend(Fail(operation="put", key="*/outbox/*")) as backend:
        with pytest.raises(UploadError):
            await batch(backend, 0, b"rows")
    assert await job.commits() == {}
    assert await job.keys("outbox/") == []


@pytest.mark.parametrize(
    ("spoiled", "error"),
    [
        (None, MissingObjectError),
        (b"short", CorruptObjectError),
        (b"x" * 200, CorruptObjectError),
        (encode_part(b"swor", "none"), CorruptObjectError),
    ],
    ids=["gone", "cut off", "overwritten", "another part"],
)
async def test_staged_output_that_is_not_as_it_was_is_not_published(
    spoiled: bytes | None, error: type[Exception]
) -> None:
    """And stays in the outbox: put the object back."""
    job = Job(inline_bytes_max=OBJECTS)
    async with job.backend() as backend:
        await batch(backend, 0, b"rows")
    (key,) = await job.keys("outbox/")
    data = await job.store.get(f"{JOB}/{key}")
    await (job.store.delete(f"{JOB}/{key}") if spoiled is None else job.store.put(f"{JOB}/{key}", (spoiled,)))
    async with job.backend() as backend:
        with pytest.raises(error):
            await backend.take_output()
        await job.store.put(f"{JOB}/{key}", (data,))
        assert await publish_all(backend) == [(0, [b"rows"])]


async def test_a_rollback_publishes_what_the_older_commit_names(job: Job) -> None:
    """And not the output of the branch that it leaves."""
    async with job.backend() as backend:
        await batch(backend, 0, b"kept")
        await batch(backend, 1, b"left behind")
    async with job.backend(checkpoint_id=0) as backend:
        assert await publish_all(backend) == [(0, [b"kept"])]


async def test_a_sweep_keeps_what_a_retained_commit_names_and_takes_the_rest() -> None:
    """Published or not; of a commit whose object goes, what newer ones name still stays."""
    job = Job(inline_bytes_max=OBJECTS, checkpoints_retained=2)
    async with job.backend() as backend:
        for batch_id in range(3):
            await batch(backend, batch_id, b"rows")
            await publish_all(backend)
    named = [commit.outbox[0].parts[0].key for commit in (await job.commits()).values()]
    job.pass_time(2 * 3600.0)
    async with job.backend() as backend:
        await put(backend, 3)
    job.pass_time(2 * 3600.0)
    await job.sweep()
    assert await job.keys("outbox/") == named[2:]


async def test_a_piece_of_a_commit_outlives_its_checkpoint_while_it_is_not_published() -> None:
    """Commits by hand carry it on; the object that has it stays, and then goes with the rest."""
    job = Job(inline_bytes_max=INLINE, checkpoints_retained=1)
    async with job.backend() as backend:
        await batch(backend, 0, b"rows")
        for value in range(3):
            await put(backend, value)
    first = f"commits/{1:012d}"
    job.pass_time(2 * 3600.0)
    await job.sweep()
    assert first in await job.keys("commits/")
    async with job.backend() as backend:
        stand_on(backend)
        assert await publish_all(backend) == [(0, [b"rows"])]
        await put(backend, 4)
    job.pass_time(2 * 3600.0)
    await job.sweep()
    assert first not in await job.keys("commits/")


def test_what_tasks_have_staged_is_one_output() -> None:
    """Their inline parts follow each other in the commit, behind what it carries besides."""
    far = Handle("outbox/a", 0, 500, 1)
    near = Handle("", 0, 3, 2)
    one = Staged(b"schema", 2, (near, far), (b"abc",))
    nothing = Staged(b"schema", 0)
    two = Staged(b"schema", 3, (near, msgspec.structs.replace(near, offset=3)), (b"def", b"ghi"))
    both = joined([one, nothing, two])
    assert (both.rows, both.inline) == (5, (b"abc", b"def", b"ghi"))
    assert [(part.key, part.offset) for part in both.after(10)] == [
        ("", 10),
        ("outbox/a", 0),
        ("", 13),
        ("", 16),
    ]


async def test_owners_of_parts_stage_and_the_coordinator_names() -> None:
    """What a task has staged in a process of its own is published by the one that commits."""
    job = Job(inline_bytes_max=INLINE)
    store = FaultyStore(job.store, [Fail(operation="get_range")])  # what it carries itself, it need not read
    async with sb.owners.open_coordinator(job.settings, store=store, clock=job.clock) as coordinator:
        staged, snapshots = [], []
        for group in range(2):
            async with job.backend(key_groups=sb.owners.KeyGroupRange(group, group)) as owner:
                staged.append(await owner.outbox.stage(output(b"of %d" % group)))
                snapshots.append(await owner.snapshot(0))
        await coordinator.commit(0, snapshots, source(0), inline=(b"frames",), staged=joined(staged))
        taken = await coordinator.take_output()
        assert taken is not None
        assert [bytes(stream) for stream in taken[1]] == [b"of 0", b"of 1"]
        coordinator.published(taken[0])
        assert await coordinator.take_output() is None


async def test_a_checkpoint_cancelled_while_it_stages_leaves_the_job_as_it_was() -> None:
    """Nothing of it stays: the next one is given the rows again."""
    job = Job(inline_bytes_max=OBJECTS)
    hold = Hold(operation="put", key="*/outbox/*", moment="after")
    async with job.backend(hold) as backend:
        checkpoint = asyncio.ensure_future(batch(backend, 0, b"rows"))
        await hold.reached.wait()
        checkpoint.cancel()
        with pytest.raises(asyncio.CancelledError):
            await checkpoint
        assert await job.keys("outbox/") == []
        hold.release()
        await batch(backend, 0, b"rows")
        assert await publish_all(backend) == [(0, [b"rows"])]
    (commit,) = (await job.commits()).values()
    assert await job.keys("outbox/") == [part.key for part in commit.outbox[0].parts]


async def test_staged_output_is_looked_at_and_verified() -> None:
    """With the checkpoints that need it: a bit that is flipped, and an object that is gone."""
    job = Job(inline_bytes_max=OBJECTS)
    async with job.backend() as backend:
        await batch(backend, 0, b"one", b"two")
        await put(backend, 7)
    entry = (await sb.inspect(job.settings, store=job.store)).log[1]
    report = await sb.verify(job.settings, store=job.store)
    assert report.damages == ()
    flipped, gone = await job.keys("outbox/")
    assert entry.objects == 2 + 1  # and a segment
    assert report.objects["primary"] == 2 + 2
    data = bytearray(await job.store.get(f"{JOB}/{flipped}"))
    data[-1] ^= 1
    await job.store.put(f"{JOB}/{flipped}", (data,))
    await job.store.delete(f"{JOB}/{gone}")
    report = await sb.verify(job.settings, store=job.store)
    assert [(damage.key, damage.copy, damage.checkpoints) for damage in report.damages] == [
        (flipped, "primary", (0, 1)),
        (gone, "primary", (0, 1)),
    ]
    assert report.damages[1].reason == "it is gone"


async def test_a_piece_of_a_commit_is_verified_where_it_lies() -> None:
    """Also when that commit is not retained any more, and so not read for itself."""
    job = Job(inline_bytes_max=INLINE, checkpoints_retained=1)
    async with job.backend() as backend:
        await batch(backend, 0, b"one", b"two")
        stand_on(backend)
        await put(backend, 7)
    report = await sb.verify(job.settings, store=job.store)
    pointed_into = {each.key for part in (await job.commits())[1].ranges for each in part.objects()}
    assert (report.damages, report.objects["primary"]) == ((), len(pointed_into)), "no object of its own"
    key = f"{JOB}/commits/{1:012d}"
    data = bytearray(await job.store.get(key))
    data[-1] ^= 1
    await job.store.put(key, (data,))
    (damage,) = (await sb.verify(job.settings, store=job.store)).damages
    assert (f"{JOB}/{damage.key}", damage.checkpoints) == (key, (1,))


async def test_a_rewrite_to_another_number_of_key_groups_names_what_is_to_be_published(job: Job) -> None:
    """It publishes nothing, and loses nothing."""
    async with job.backend() as backend:
        await batch(backend, 0, b"one", b"two")
    job.settings = msgspec.structs.replace(job.settings, max_parallelism=8)
    await sb.rewrite(job.settings, store=job.store, clock=job.clock)
    async with job.backend() as backend:
        assert await publish_all(backend) == [(0, [b"one", b"two"])]
