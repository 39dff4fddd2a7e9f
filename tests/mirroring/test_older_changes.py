"""A key's history goes on in a mirror's log where the commits of the job are not kept any more."""

from pathlib import Path
from typing import Any

import anyio
import pytest

import statebackend as sb
from statebackend.cli import OK, main
from statebackend.errors import CheckpointNotFoundError, InputError
from statebackend.reports import KeyHistory
from tests.log.swept import HOUR_S
from tests.mirroring.listed import Listed
from tests.mirroring.mirrored import EWR, JFK, LGA, Job
from tests.mirroring.places import PLACES

SHOWN = {
    "EWR": {"origin": "EWR", "miles": 1},
    "JFK": {"origin": "JFK", "miles": 2},
    "LGA": {"origin": "LGA", "miles": 3},
}


async def swept(job: Job) -> None:
    job.clock.now_s += 26 * HOUR_S
    await job.commit({"other": JFK})
    await sb.sweep(job.settings, dry_run=False, store=job.store, clock=job.clock)


def told(found: KeyHistory) -> list[tuple[Any, ...]]:
    return [(each.source and each.source.batch_id, each.before, each.after) for each in found.changes]


@pytest.mark.parametrize("name", ["folder", "delta-log", "iceberg"])
async def test_all_changes_since_the_mirror_began(name: str, tmp_path: Path) -> None:
    """As if the log had been kept: batch by batch, and what the key had at the beginning."""
    job, target = Job(checkpoints_retained=1), PLACES[name]("", tmp_path).target
    await job.commit({"a": LGA, "b": LGA})
    await job.mirror(target(), form="log")
    await job.commit({"a": EWR, "b": EWR})
    await job.mirror(target(), form="log", anew=True)  # what comes before is of an older generation
    for leg in (JFK, None, LGA):
        await job.commit({"a": leg, "b": JFK})
        await job.mirror(target(), form="log")
    whole = await sb.history_of(job.settings, "legs", "a", store=job.store)
    assert told(whole) == [
        (5, None, SHOWN["LGA"]),
        (4, SHOWN["JFK"], None),
        (3, SHOWN["EWR"], SHOWN["JFK"]),
        (2, SHOWN["LGA"], SHOWN["EWR"]),
        (1, None, SHOWN["LGA"]),
    ]
    await swept(job)
    await job.commit({"a": JFK})
    await job.mirror(target(), form="log")
    short = await sb.history_of(job.settings, "legs", "a", store=job.store)
    assert len(short.changes) < 5
    assert not short.is_whole
    mirror = sb.Mirror("legs", to=target())
    found = await sb.history_of(job.settings, "legs", "a", mirror=mirror, store=job.store)
    assert told(found) == [(7, SHOWN["LGA"], SHOWN["JFK"]), *told(whole)[:-2]]
    assert (found.checkpoint_id, found.value, found.is_whole) == (2, SHOWN["EWR"], False)
    assert [each.sequence for each in found.changes[1:]] == [-1, -1, -1]
    since = await sb.history_of(
        job.settings, "legs", "a", mirror=mirror, store=job.store, since=whole.changes[1].committed_at_s
    )
    assert told(since) == told(found)[:2]
    assert (since.checkpoint_id, since.value) == (4, None)


async def test_another_table_is_not_read_for_the_mirrors(tmp_path: Path) -> None:
    """It may be a log, too, with generations that are numbered alike."""
    job = Job(checkpoints_retained=1)
    await job.commit({"a": EWR})
    await job.mirror(tmp_path / "one")
    await job.mirror(tmp_path / "other", name="other")
    await swept(job)
    await job.mirror(tmp_path / "one")
    for folder in ("other", "none"):
        with pytest.raises(InputError, match="another table"):
            await sb.history_of(
                job.settings, "legs", "a", mirror=sb.Mirror("legs", to=tmp_path / folder), store=job.store
            )


async def test_a_mirror_that_does_not_reach_so_far_is_refused(tmp_path: Path) -> None:
    """Between its last commit and the oldest that is kept, changes would be missing unnoticed."""
    job = Job(checkpoints_retained=1)
    await job.commit({"a": EWR})
    await job.mirror(tmp_path)
    await job.commit({"a": LGA})
    await swept(job)
    mirror = sb.Mirror("legs", to=tmp_path)
    with pytest.raises(CheckpointNotFoundError, match="ends before what is kept begins"):
        await sb.history_of(job.settings, "legs", "a", mirror=mirror, store=job.store)
    await job.mirror(tmp_path)
    found = await sb.history_of(job.settings, "legs", "a", mirror=mirror, store=job.store)
    assert told(found) == []  # it has begun anew


async def test_what_has_no_log_is_refused(tmp_path: Path) -> None:
    job = Job(checkpoints_retained=1)
    await job.commit({"a": EWR})
    listed = Listed()
    await job.mirror(tmp_path)
    await job.mirror(listed, name="table")
    await job.mirror(listed2 := Listed(), name="log", form="log")
    await swept(job)
    for name, target in (("table", listed), ("none", listed), ("log", listed2)):
        await job.commit({"a": LGA})
        await job.mirror(listed, name="table")
        await job.mirror(listed2, name="log", form="log")
        with pytest.raises(InputError):
            await sb.history_of(
                job.settings, "legs", "a", mirror=sb.Mirror("legs", to=target, name=name), store=job.store
            )


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = ["--primary", f"file://{tmp_path}/state", "--job", "fleet"]

    async def commit() -> None:
        async with sb.open_backend(sb.Settings(job="fleet", primary=f"file://{tmp_path}/state")) as backend:
            backend.value_state("legs", int)["a"] = 1
            await backend.checkpoint(1)

    anyio.run(commit)
    assert main(["mirror", "legs", f"{tmp_path}/legs", "--once", *job]) == OK
    assert main(["log", "legs", "a", "--mirror", f"{tmp_path}/legs", *job]) == OK
    assert "null -> 1" in capsys.readouterr().out
