"""An erasure reads what may have the key of what is needed, and of what is superseded only what is little beside it."""

import random
from collections import Counter
from typing import Any

import pytest

import statebackend as sb
from statebackend._log.names import sequence_of
from statebackend._upkeep.offline import key_search, keys_found
from statebackend._upkeep.offline.key_search import Unknown
from statebackend.errors import InputError, MissingObjectError, ObjectNotFoundError
from statebackend.objectstore import MemoryStore
from statebackend.testing import run_virtual
from tests.erase.persons import ADA, BOB, SETTINGS, Job, without, writes
from tests.rewrite.jobs import JOB, newest_commit, objects_of, settings_of, work

KEYS, VALUE_BYTES, GROUPS = 4096, 1024, 128
LARGE: dict[str, Any] = {"compression": "none", "inline_bytes_max": 0}


class Reads(MemoryStore):
    """Notes how many bytes of each object are read, and by how many requests. `gone` are not found, though listed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.bytes_of = Counter[str]()
        self.requests_of = Counter[str]()
        self.gone = frozenset[str]()

    async def get(self, key: str) -> bytes:
        return self._note(key, await super().get(key))

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        return self._note(key, await super().get_range(key, offset, length))

    def _note(self, key: str, data: bytes) -> bytes:
        key = key.removeprefix(f"{JOB}/")
        if key in self.gone:
            raise ObjectNotFoundError("swept", key=key)
        self.bytes_of[key] += len(data)
        self.requests_of[key] += 1
        return data


class ReadJob(Job):
    """A job whose reads are noted."""

    store: Reads

    def __init__(self, settings: sb.Settings = SETTINGS) -> None:
        super().__init__(settings)
        self.store = Reads(clock=self.clock)

    def forget(self) -> None:
        self.store.bytes_of.clear()
        self.store.requests_of.clear()


async def large(monkeypatch: pytest.MonkeyPatch) -> ReadJob:
    """A state of 4 MiB in bases of a key group each, and as much again in four change sets that they superseded."""
    for name in ("ALONE_BYTES_MIN", "FRAME_BYTES_MIN"):
        monkeypatch.setattr(f"statebackend._checkpoint.materialization.bases.{name}", 1)
    monkeypatch.setattr("statebackend._tables.snapshot.TOGETHER_BYTES", 1)
    monkeypatch.setattr("statebackend._changelog.changelog_reader.TAIL_BYTES", 256)
    monkeypatch.setattr(key_search, "TAIL_BYTES", 256)
    monkeypatch.setattr(key_search, "WHOLE_BYTES_MAX", 0)
    monkeypatch.setattr(keys_found, "SUPERSEDED_BYTES", 0)
    chance, job = random.Random(1), ReadJob(settings_of(GROUPS // 2, **LARGE))
    async with sb.open_backend(job.settings, store=job.store, clock=job.clock) as backend:
        state = backend.value_state("value", bytes)
        for first in range(0, KEYS, KEYS // 4):
            some = range(first, first + KEYS // 4)
            state.put_many([f"key {number}" for number in some], [chance.randbytes(VALUE_BYTES) for _ in some])
            await backend.checkpoint(backend.next_checkpoint_id)
    job.settings = settings_of(GROUPS, **LARGE)
    await sb.rewrite(job.settings, store=job.store)
    job.forget()
    return job


@run_virtual
async def test_one_key_of_many_reads_and_writes_a_64th_of_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two requests for the index of each base, no byte of a base twice but its index; what was superseded is listed."""
    job = await large(monkeypatch)
    commit = await newest_commit(job.store)
    sizes = {key: len(body) for key, body in (await objects_of(job.store)).items()}
    superseded = {key for key in sizes if key.startswith("segments/")} - commit.segments()
    state_bytes = sum(sizes[key] for key in commit.segments())
    job.forget()
    report = await sb.erase(job.settings, ["key 7"], store=job.store, clock=job.clock)
    of_data = sum(count for key, count in job.store.bytes_of.items() if sequence_of(key) is None)
    assert of_data <= state_bytes / 64
    assert report.bytes_written <= state_bytes / 64
    assert of_data < report.bytes_read < job.store.bytes_of.total()  # the log counts; to find it twice does not
    (rewritten,) = report.rewritten
    others = commit.segments() - {rewritten}
    assert {job.store.requests_of[key] for key in others} == {2}
    assert {job.store.bytes_of[key] for key in others} == {8 + 256}
    assert job.store.bytes_of[rewritten] <= sizes[rewritten] + 2 * (8 + 256)
    assert {each.key: each.reason for each in report.holders} == {
        **dict.fromkeys(superseded, Unknown.UNREAD.value),
        rewritten: "1 changes of the keys",
    }
    assert all(job.store.bytes_of[key] <= 8 + 256 for key in superseded)


@run_virtual
async def test_what_is_superseded_is_read_where_it_is_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that has the key is told with its changes, and those that have none are not told."""
    job = await large(monkeypatch)
    monkeypatch.setattr(keys_found, "SUPERSEDED_BYTES", 2 * KEYS * VALUE_BYTES)
    report = await sb.erase(job.settings, ["key 7"], store=job.store, clock=job.clock, dry_run=True)
    assert [each.reason for each in report.holders] == ["1 changes of the keys"] * 2
    commit = await newest_commit(job.store)
    assert len({each.key for each in report.holders} - commit.segments()) == 1


@run_virtual
async def test_the_smallest_of_what_is_superseded_is_read_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """So most of it is known."""
    job = await large(monkeypatch)
    async with sb.open_backend(job.settings, store=job.store, clock=job.clock) as backend:
        backend.value_state("value", bytes)["small"] = b"1"
        await backend.checkpoint(backend.next_checkpoint_id)
    job.settings = settings_of(GROUPS // 2, **LARGE)
    await sb.rewrite(job.settings, store=job.store)
    monkeypatch.setattr(keys_found, "SUPERSEDED_BYTES", VALUE_BYTES)
    report = await sb.erase(job.settings, ["small"], store=job.store, clock=job.clock, dry_run=True)
    known = [each.key for each in report.holders if each.reason == "1 changes of the keys"]
    assert len(known) == len({each.key for each in report.holders} & (await newest_commit(job.store)).segments()) + 1


@run_virtual
async def test_a_key_that_nothing_needs_any_more_is_looked_for_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that only superseded change sets have is erased, and one that never was is refused: whatever is allowed."""
    job = await large(monkeypatch)
    async with sb.open_backend(job.settings, store=job.store, clock=job.clock) as backend:
        state = backend.value_state("value", bytes)
        state["gone"] = b"1"
        await backend.checkpoint(backend.next_checkpoint_id)
        del state["gone"]
        await backend.checkpoint(backend.next_checkpoint_id)
    await sb.rewrite(settings_of(GROUPS // 2, **LARGE), store=job.store)
    job.settings = settings_of(GROUPS // 2, **LARGE)
    report = await sb.erase(job.settings, ["gone"], store=job.store, clock=job.clock)
    assert report.checkpoint_id is not None
    assert [each.reason for each in report.holders] == ["1 changes of the keys"] * 2
    with pytest.raises(InputError, match="nothing of the job has these keys"):
        await sb.erase(job.settings, ["never"], store=job.store, clock=job.clock)
    again = await sb.erase(job.settings, ["gone"], store=job.store, clock=job.clock)
    assert (again.checkpoint_id, again.holders) == (None, report.holders)


@run_virtual
async def test_what_a_savepoint_needs_is_read_whatever_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has to be known whether it has the key."""
    job = await large(monkeypatch)
    async with sb.open_backend(job.settings, store=job.store, clock=job.clock) as backend:
        backend.value_state("value", bytes)["late"] = b"1"
        await backend.checkpoint(backend.next_checkpoint_id)
    newest = await newest_commit(job.store)
    await sb.savepoint(job.settings, "before", checkpoint_id=newest.checkpoint_id - 2, store=job.store)
    report = await sb.erase(job.settings, ["late"], store=job.store, clock=job.clock, dry_run=True)
    assert report.savepoints_dropped == ()
    with pytest.raises(InputError, match="savepoints have the keys"):
        await sb.erase(job.settings, ["key 7"], store=job.store, clock=job.clock, dry_run=True)


@run_virtual
async def test_only_the_parts_of_a_commit_that_may_have_the_key_are_read_again() -> None:
    """Commits are read for the log once; what they carry is read by range, and only if its key groups are the key's."""
    job = ReadJob(settings_of(16, compression="none"))
    await work(job.settings, job.store, writes(1, BOB), [("value", ADA, 2)], writes(3, BOB))
    before = {key: len(body) for key, body in (await objects_of(job.store)).items()}
    with_her = [key for key, body in (await objects_of(job.store)).items() if ADA.encode() in body]
    job.forget()
    await job.erase(dry_run=True)
    commits = [key for key in before if sequence_of(key) is not None]
    again = {key for key in commits if job.store.bytes_of[key] > before[key]}
    newest = (await newest_commit(job.store)).sequence
    assert {key for key in again if sequence_of(key) != newest} == set(with_her)


@run_virtual
async def test_what_is_swept_while_it_is_looked_for_is_no_holder() -> None:
    """Unless the newest commit needs it: then the job is damaged."""
    job = ReadJob()
    before = await job.with_bases()
    needed = (await newest_commit(job.store)).segments()
    superseded = frozenset(key for key in await objects_of(job.store) if key.startswith("segments/")) - needed
    job.store.gone = superseded
    report = await job.erase(dry_run=True)
    assert not superseded & {each.key for each in report.holders}
    job.store.gone = frozenset(sorted(needed)[:1])
    with pytest.raises(MissingObjectError, match="needs is gone"):
        await job.erase()
    job.store.gone = superseded
    await job.erase()
    assert await job.read() == without(before)


@run_virtual
async def test_what_was_read_of_a_change_set_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the key, so it is written again from what the search has kept."""
    monkeypatch.setattr(key_search, "WHOLE_BYTES_MAX", 0)
    job = ReadJob()
    before = await job.with_changes()
    sizes = {key: len(body) for key, body in (await objects_of(job.store)).items()}
    job.forget()
    report = await job.erase()
    assert report.rewritten
    for key in report.rewritten:  # each is smaller than the tail in which its index is looked for
        assert job.store.bytes_of[key] < 2 * sizes[key] + 8
    assert await job.read() == without(before)
