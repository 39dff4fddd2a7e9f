"""A mirror beside a stream: it keeps up, and whatever happens to it, the stream goes on and somebody is told."""

from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest

import statebackend as sb
from statebackend._mirroring.keeping_up import run_mirror
from statebackend._mirroring.target import MirrorMark
from statebackend.cli import OK, WRONG_CALL, main
from statebackend.observers import Metrics
from statebackend.testing import Fail, FaultyStore, run_virtual
from statebackend.testing.virtual_time import VirtualClock
from tests.log.swept import HOUR_S
from tests.mirroring.listed import Listed
from tests.mirroring.mirrored import EWR, JFK, LGA, Job, Leg, shown


@run_virtual
async def test_a_mirror_keeps_up_and_outlives_what_its_target_raises() -> None:
    """Also an error that is none of ours. The job's commits do not notice; the observer does."""
    job, target, metrics = Job(), Listed(None, KeyError("a defect"), OSError("no answer")), Metrics()
    mirror = sb.Mirror("legs", to=target, every_s=1.0)
    async with anyio.create_task_group() as tasks:
        ended = anyio.Event()
        options: dict[str, Any] = {"store": job.store, "clock": VirtualClock(), "observer": metrics}
        tasks.start_soon(lambda: run_mirror(job.settings, mirror, ended, **options))
        for leg in (EWR, LGA, JFK):
            await job.commit({"a": leg})
            await anyio.sleep(60.0)
            assert target.rows == await job.state()
        await job.commit({"b": EWR})
        ended.set()  # it carries over what there is, and ends
    assert target.rows == await job.state()
    assert metrics.mirror_failures == {"legs": 3}  # with the look at a job that had no commit
    assert metrics.mirrored_commits == {"legs": 4}
    assert (metrics.mirror_lag_commits, metrics.mirror_lag_seconds) == (0.0, 0.0)


@pytest.mark.parametrize("form", ["table", "log"])
async def test_a_state_that_is_gone_is_told_and_the_table_stays(form: Any) -> None:
    """The job went back behind its first value. With the next one the table is right again."""
    job, target = Job(), Listed()
    await job.commit({"x": 1}, state="other", type_=int)
    await job.commit({"a": EWR})
    await job.mirror(target, form=form)
    await job.commit({"x": 2}, state="other", type_=int, checkpoint_id=1)
    with pytest.raises(sb.errors.InputError, match="the state is gone"):
        await job.mirror(target, form=form)
    assert "a" in target.rows
    await job.commit({"b": LGA})
    assert len((await job.mirror(target, form=form)).anew) == 1
    assert form == "log" or target.rows == await job.state()


@pytest.mark.parametrize("hold_h", [0, 100])
async def test_a_sweep_waits_for_a_mirror_for_a_bounded_time(hold_h: int, tmp_path: Path) -> None:
    """`hold_s` keeps the commits that the table lacks; when it is over, the mirror starts anew."""
    job = Job(checkpoints_retained=1)
    await job.commit({"a": EWR})
    await job.mirror(tmp_path, hold_s=hold_h * HOUR_S)
    for days, anew in ((2, () if hold_h else ("it fell behind what is kept",)), (6, ("it fell behind what is kept",))):
        await job.commit({"a": LGA})
        await job.commit({"b": LGA})
        for _ in range(days):
            job.clock.now_s += 24 * HOUR_S
            await job.commit({"c": Leg("JFK", days)})
            await sb.sweep(job.settings, dry_run=False, store=job.store, clock=job.clock)
        job.clock.now_s += HOUR_S
        report = await job.mirror(tmp_path, hold_s=hold_h * HOUR_S)
        assert report.anew == anew
        assert shown(tmp_path) == await job.state()
    swept = await sb.sweep(job.settings, dry_run=True, store=job.store, clock=job.clock)
    assert swept.total(sb.reports.SweepReason.MIRROR)[0] == 2
    assert swept.total(sb.reports.SweepReason.FOREIGN)[0] == 0


async def test_a_report_says_how_far_each_mirror_is_behind(tmp_path: Path) -> None:
    job = Job()
    await job.commit({"a": EWR})
    await job.mirror(tmp_path / "one")
    await job.commit({"a": LGA})
    await job.mirror(tmp_path / "two", name="second")
    await job.commit({"a": JFK})
    job.clock.now_s += 10.0
    found = await sb.report(job.settings, store=job.store, clock=job.clock)
    rows = {each.name: (each.checkpoint_id, each.commits_behind, each.seconds_behind) for each in found.mirrors}
    assert rows == {"legs": (1, 2, 11.0), "second": (2, 1, 10.0)}


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--once` carries over, and says what it did; twice there is nothing to do; a report shows it."""
    settings = sb.Settings(job="fleet", primary=f"file://{tmp_path}/state")

    async def commit() -> None:
        async with sb.open_backend(settings) as backend:
            backend.value_state("legs", Leg)["a"] = EWR
            await backend.checkpoint(1)

    anyio.run(commit)
    job = ["--primary", settings.primary, "--job", "fleet"]
    command = ["mirror", "legs", str(tmp_path / "table"), "--once", *job]
    assert main(command) == OK
    assert "mirror legs: checkpoint 1, 2 rows of 1 commits" in capsys.readouterr().out
    assert list(shown(tmp_path / "table")) == ["a"]
    assert main(command) == OK
    assert "nothing to do" in capsys.readouterr().out
    assert main(["report", *job]) == OK
    assert f"file://{tmp_path}/table" in capsys.readouterr().out
    assert main(["mirror", "leg", str(tmp_path / "other"), "--once", *job]) == WRONG_CALL
    assert "did you mean 'legs'" in capsys.readouterr().err


@pytest.mark.parametrize("others", [1, 2])
@pytest.mark.parametrize("is_new", [True, False])
async def test_another_one_goes_on_between_two_looks_at_where_it_stands(others: int, *, is_new: bool) -> None:
    """It has read the log when the table has gone further: that is no table that was put back, nor another mirror's."""
    job = Job()
    await job.commit({"a": EWR})

    class Overtaken(Listed):
        async def find(self) -> MirrorMark:
            nonlocal others
            if others:
                others -= 1
                await job.commit({"a": LGA, f"{others}": JFK})
                await job.mirror(target)
            return self.mark

    target = Overtaken()
    if not is_new:
        left, others = others, 0
        await job.mirror(target)
        others = left
    report = await job.mirror(target)
    assert report.anew == ()
    assert target.rows == await job.state()


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("form", ["table", "log"])
async def test_killed_at_every_request_to_the_primary(form: Any, moment: Any) -> None:
    """From any of them on, nothing is answered any more; the next one ends with the state, and leaves two steps."""
    job, target = Job(), Listed()
    await job.commit({"a": EWR, "b": JFK})
    for nth in count(1):
        await job.commit({"a": Leg("LGA", nth), "b": None if nth % 2 else JFK})
        death = Fail(nth=nth, onwards=True, moment=moment)
        is_dead = True
        with suppress(sb.StateBackendError):
            await job.mirror(target, form=form, store=FaultyStore(job.store, [death]))
            is_dead = False
        await job.mirror(target, form=form)
        assert target.rows == await job.state()
        assert len([info async for info in job.store.list("fleet/mirrors/")]) <= 3
        if not is_dead:
            break
    assert nth > 10
