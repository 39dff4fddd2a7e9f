"""A task reads its own part of a large commit, and all of it only where it needs more or the part is damaged."""

from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest

import statebackend as sb
from statebackend._log.names import entry_key, sequence_of
from statebackend._ranges.range_owners import RangeOwners, RangeTask, open_range_owners
from statebackend.errors import CorruptCommitError
from statebackend.objectstore import MemoryStore
from tests.knobs import settings_with
from tests.ranges.parts import Model, Run, add, open_run

OWNERS = 6
SETTINGS = sb.Settings(job="fleet", primary="memory://unused", persist_delay_s=0.0, max_parallelism=12)


class LogStore(MemoryStore):
    """Notes what is read of the log: whole entries, and bytes of parts. Damages parts, and entries, if told to."""

    def __init__(self) -> None:
        super().__init__()
        self.whole = Counter[str]()
        self.bytes_of_parts = 0
        self.damages_parts = self.damages_all = False

    def forget(self) -> None:
        self.whole.clear()
        self.bytes_of_parts = 0

    async def get(self, key: str) -> bytes:
        data = await super().get(key)
        if sequence_of(key.removeprefix("fleet/")) is None:
            return data
        self.whole[key] += 1
        return data[:-1] + bytes([data[-1] ^ 1]) if self.damages_all else data

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        data = await super().get_range(key, offset, length)
        if sequence_of(key.removeprefix("fleet/")) is None:
            return data
        self.bytes_of_parts += len(data)
        return data[:-1] + bytes([data[-1] ^ 1]) if self.damages_parts else data


def batch(number: int) -> list[tuple[sb.Key, int]]:
    return [(key, number) for key in range(40)]


def handing_out_parts(run: Run) -> Run:
    """As if every commit were too large to go along with a task."""
    run.body_bytes_max = 0
    return run


async def body_of_base(run: Run, store: MemoryStore) -> bytes:
    assert run.coordinator.base is not None
    return await store.get(f"fleet/{entry_key(run.coordinator.base.sequence)}")


@pytest.mark.parametrize("inline_bytes_max", [0, 64 * 1024])
async def test_all_tasks_together_read_no_more_than_one_commit(inline_bytes_max: int) -> None:
    """And not a commit each. Those who go on need nothing else; the changes that it carries are not read."""
    settings = msgspec.structs.replace(SETTINGS, inline_bytes_max=inline_bytes_max)
    store, model = LogStore(), Model()
    async with open_run(settings, OWNERS, store) as run, open_range_owners(store=store) as owners:
        handing_out_parts(run)
        for number in range(4):
            store.forget()
            size_bytes = len(await body_of_base(run, store)) if run.coordinator.base is not None else 0
            store.forget()
            assert len(await run.batch(owners, batch(number))) == OWNERS
            assert store.whole.total() == 0
            assert (store.bytes_of_parts > 0) is (number > 0)
            assert store.bytes_of_parts <= size_bytes
            model.apply(batch(number))
        await model.check(settings, store)


async def test_who_knows_nothing_of_the_range_restores_it_from_its_part() -> None:
    """Changes that the base itself carries among it, which came along with the task otherwise."""
    store, model = LogStore(), Model()
    async with open_run(SETTINGS, OWNERS, store) as run:
        handing_out_parts(run)
        for number in range(3):
            async with open_range_owners(store=store) as owners:
                contributions = await run.batch(owners, batch(number))
            assert all(each.found == ("primary" if number else "new") for each in contributions)
            model.apply(batch(number))
    await model.check(SETTINGS, store)


async def test_a_part_that_is_not_what_it_was_is_not_believed(caplog: pytest.LogCaptureFixture) -> None:
    """The whole is read, which has a checksum of its own; where that is damaged, too, it says so."""
    store, model = LogStore(), Model()
    async with open_run(SETTINGS, OWNERS, store) as run, open_range_owners(store=store) as owners:
        handing_out_parts(run)
        await run.batch(owners, batch(0))
        store.damages_parts = True
        await run.batch(owners, batch(1))
        assert store.whole == {f"fleet/{entry_key(1)}": OWNERS}
        assert caplog.text.count("all of it is read") == OWNERS
        store.damages_all = True
        with pytest.raises(CorruptCommitError):
            await run.contribute(owners, run.tasks()[0], batch(2))
        store.damages_parts = store.damages_all = False
        for number in (0, 1):
            model.apply(batch(number))
        await model.check(SETTINGS, store)


async def test_ranges_that_were_cut_anew_need_the_whole(caplog: pytest.LogCaptureFixture) -> None:
    """Once, and that is no damage."""
    store, model = LogStore(), Model()
    for parts in (3, 2, 4):
        async with open_run(SETTINGS, parts, store) as run, open_range_owners(store=store) as owners:
            handing_out_parts(run)
            for number in range(3):
                store.forget()
                await run.batch(owners, batch(number))
                model.apply(batch(number))
                assert store.whole.total() == (parts if parts != 3 and number == 0 else 0)
    assert caplog.text == ""
    await model.check(SETTINGS, store)


async def test_operator_state_is_divided_by_who_knows_all_of_it() -> None:
    """In a new epoch; later each owner keeps what it has, and its part says what that is."""
    store = LogStore()

    def append(backend: sb.StateBackend) -> None:
        backend.operator_state("seen", int).append(1)

    def count(backend: sb.StateBackend) -> None:
        counted.append(len(backend.operator_state("seen", int)))

    for epoch in range(2):
        async with open_run(SETTINGS, OWNERS, store) as run, open_range_owners(store=store) as owners:
            handing_out_parts(run)
            for number in range(2):
                store.forget()
                await run.commit([await owners.contribute(task, append) for task in run.tasks()])
                assert store.whole.total() == (OWNERS if (epoch, number) == (1, 0) else 0)
            counted: list[int] = []
            for task in run.tasks():
                await owners.contribute(task, count)
            assert counted == [2 * (epoch + 1)] * OWNERS


async def working_at_once(owners: RangeOwners, tasks: Sequence[RangeTask], run: Run, number: int) -> None:
    """All tasks of a host are open before the first of them ends."""
    async with AsyncExitStack() as stack:
        attempts = [await stack.enter_async_context(owners.attempt(task)) for task in tasks]
        for attempt in attempts:
            add(attempt.backend, run.changes_of(attempt.task, batch(number)))
        contributions = [await attempt.contribute() for attempt in attempts]
    await run.commit(contributions)


def copied_in(path: Path) -> set[str]:
    """The entries of the log that lie in the local root."""
    return {f"commits/{copy.name}" for copy in path.glob("a/job_fleet/taskowned/commits/*")}


async def test_one_task_of_a_host_reads_the_whole_for_the_local_copy(tmp_path: Path) -> None:
    """Of what carries changes. The others read their parts, and a process that knows nothing finds all on the host."""
    settings = settings_with(
        job="fleet",
        primary="memory://unused",
        local=(f"{tmp_path}/a",),
        max_parallelism=12,
        upload__timeout_s=0.0,
        secondary_grace_s=60.0,
    )
    store, model = LogStore(), Model()
    async with open_run(msgspec.structs.replace(settings, local=()), OWNERS, store) as run:
        handing_out_parts(run)
        run.settings = settings
        async with open_range_owners(store=store) as owners:
            for number in range(4):
                store.forget()
                await working_at_once(owners, run.tasks(), run, number)
                assert store.whole.total() == (1 if number else 0)
                model.apply(batch(number))
    assert copied_in(tmp_path) == {entry_key(sequence) for sequence in (1, 2, 3)}
    await model.check(settings, store)
