"""Processes of one host share its local copies; another host has its own."""

from pathlib import Path

import msgspec
import pytest

import statebackend as sb
from statebackend._codec.commit import Commit
from statebackend._log.names import NAMES_PER_ATTEMPT
from statebackend._log.sweeping.retention import superseded
from statebackend._ranges.range_owners import open_range_owners
from statebackend.ids import ChangeSetHandle, CheckpointId, CommitSequence, Epoch, Handle, RangeState, SequenceNumber
from tests.knobs import settings_with
from tests.ranges.parts import Model, Run, add, open_run


def batch(number: int) -> list[tuple[sb.Key, int]]:
    return [(key, number) for key in range(20)]


def settings_of(tmp_path: Path, inline_bytes_max: int) -> sb.Settings:
    return settings_with(
        job="fleet",
        primary=f"file://{tmp_path}/primary",
        local=(f"{tmp_path}/host0/a", f"{tmp_path}/host0/b"),
        inline_bytes_max=inline_bytes_max,
        max_parallelism=12,
        upload__timeout_s=0.0,  # a slow machine must cost neither another attempt nor a copy that the test counts on
        secondary_grace_s=60.0,
    )


def on_host(run: Run, host: Path) -> None:
    """From now on tasks are for processes of that host."""
    run.settings = msgspec.structs.replace(run.settings, local=(f"{host}/a", f"{host}/b"))


@pytest.mark.parametrize("inline_bytes_max", [0, 64 * 1024])
async def test_another_process_of_the_host_reads_nothing_of_the_primary(tmp_path: Path, inline_bytes_max: int) -> None:
    """What the last attempt knew of as committed has a local copy, whoever has written it."""
    settings, model = settings_of(tmp_path, inline_bytes_max), Model()
    found: list[str] = []
    async with open_run(settings, 2) as run:
        for number in range(6):
            async with open_range_owners() as owners:  # a process for each batch
                for contribution in await run.batch(owners, batch(number)):
                    found.append(contribution.found)
                    assert contribution.report is None or contribution.report.files_primary == 0
                    assert contribution.report is None or contribution.report.fallbacks == ()
            model.apply(batch(number))
    assert found[:2] == ["new"] * 2
    assert found[4:] == ["host"] * 8  # before that, all there was may have come with the task
    await model.check(settings)


@pytest.mark.parametrize("inline_bytes_max", [0, 64 * 1024])
async def test_a_job_that_is_cut_otherwise_reads_what_lies_on_the_host(tmp_path: Path, inline_bytes_max: int) -> None:
    """Files are known by what they are, and not by whose range they were."""
    settings, model = settings_of(tmp_path, inline_bytes_max), Model()
    for number, parts in enumerate((2, 3, 1, 4)):
        async with open_run(settings, parts) as run, open_range_owners() as owners:
            for batches in range(3):
                contributions = await run.batch(owners, batch(10 * number + batches))
                model.apply(batch(10 * number + batches))
                reports = [each.report for each in contributions if each.report is not None]
                assert [report.files_primary for report in reports] == [0] * len(reports)
                assert ([each.found for each in contributions] == ["process"] * parts) is (batches > 0)
    await model.check(settings)


async def test_another_host_reads_the_primary_once(tmp_path: Path) -> None:
    """And has its own copies from then on; those of the other host are not touched."""
    settings, model = settings_of(tmp_path, 0), Model()
    read: list[tuple[int, int] | None] = []
    async with open_run(settings, 1) as run:
        for number, (host, source) in enumerate(
            [("host0", "new"), ("host0", "host"), ("host1", "primary"), ("host1", "host"), ("host0", "primary")]
        ):
            on_host(run, tmp_path / host)
            async with open_range_owners() as owners:
                (contribution,) = await run.batch(owners, batch(number))
            assert contribution.found == source
            model.apply(batch(number))
            report = contribution.report
            read.append(None if report is None else (report.files_local, report.files_primary))
        assert read == [None, (1, 0), (0, 2), (3, 0), (2, 2)]
    await model.check(settings)


async def test_attempts_at_once_all_have_their_copies(tmp_path: Path) -> None:
    """None of them keeps the others from writing."""
    async with (
        open_run(settings_of(tmp_path, 0), 2) as run,
        open_range_owners() as one,
        open_range_owners() as other,
    ):
        first, second = run.tasks()
        async with one.attempt(first) as attempt, other.attempt(second) as beside:
            for each, mine in ((attempt, first), (beside, second)):
                add(each.backend, run.changes_of(mine, batch(1)))
            contributions = [await attempt.contribute(), await beside.contribute()]
        copies = {f"segments/{path.name}" for path in (tmp_path / "host0").rglob("segments/*") if path.is_file()}
        assert copies == {each.snapshot.state.changelog[0].segment.key for each in contributions}


async def test_a_bad_copy_is_mended_from_the_primary(tmp_path: Path) -> None:
    """As where one backend has the root for itself."""
    settings = settings_of(tmp_path, 0)
    async with open_run(settings, 1) as run:
        async with open_range_owners() as owners:
            await run.batch(owners, batch(1))
        (copy,) = (path for path in (tmp_path / "host0").rglob("segments/*") if path.is_file())
        good = copy.read_bytes()
        copy.write_bytes(good[:-1])
        async with open_range_owners() as owners, owners.attempt(run.tasks()[0]) as attempt:
            assert attempt.found == "primary"
            assert attempt.report is not None
            assert [fallback.repaired for fallback in attempt.report.fallbacks] == [True]
        assert copy.read_bytes() == good


async def test_the_limit_of_a_root_counts_what_others_have_written(tmp_path: Path) -> None:
    """Each attempt looks first. Beyond the limit there is no copy, and nothing fails."""
    settings = msgspec.structs.replace(settings_of(tmp_path, 0), local=(f"{tmp_path}/host0",), local_bytes_max=1500)
    model = Model()
    async with open_run(settings, 1) as run:
        for number in range(8):
            async with open_range_owners() as owners:
                await run.batch(owners, batch(number))
            model.apply(batch(number))
    sizes = [path.stat().st_size for path in (tmp_path / "host0").rglob("segments/*") if path.is_file()]
    assert 1500 - max(sizes) < sum(sizes) <= 1500
    await model.check(settings)


def name_of(epoch: int, position: int, letter: str = "a") -> str:
    return f"segments/{epoch:08d}-{position * NAMES_PER_ATTEMPT:014d}-{letter * 32}"


def commit_of(sequence: int, epoch: int, *keys: str) -> Commit:
    key_groups = sb.owners.KeyGroupRange(0, 11)
    handles = [ChangeSetHandle(Handle(key, 0, 1, 0), "log", SequenceNumber(0), 0, 1, key_groups, 1) for key in keys]
    return Commit(
        job="fleet",
        sequence=CommitSequence(sequence),
        checkpoint_id=CheckpointId(sequence),
        epoch=Epoch(epoch),
        parent=None,
        stamp="",
        max_parallelism=12,
        ranges=(RangeState(key_groups, tuple(handles)),),
        states=(),
    )


def test_superseded_is_what_earlier_attempts_have_made_and_the_base_does_not_need() -> None:
    """By names alone: what is made on this base, or on a later one, may yet be needed, and what has no such name.

    Row: section 30, local: slot A is released while slot B of the same job still uses local log files. Hazard 11.
    """
    needed, lost, older = name_of(3, 5), name_of(3, 5, "b"), name_of(2, 900)
    here, later = name_of(3, 8), name_of(3, 9)
    keys = {needed, lost, older, here, later, "segments/own", "commits/000000000003", "commits/000000000006"}
    keys |= {"commits/000000000007", "commits/000000000008"}
    base = commit_of(7, 3, needed, "commits/000000000006")
    assert superseded(keys, base, Epoch(3)) == {lost, older, "commits/000000000003"}
    assert superseded(keys, base, Epoch(4)) == set()  # the epoch has not committed
    assert superseded({*keys, name_of(4, 8)}, base, Epoch(3)) == set()  # the epoch is over
