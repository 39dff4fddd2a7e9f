"""`report`: one page on a job, for people and for programs."""

import json
from typing import Any

import pytest

import statebackend as sb
from statebackend import cli
from statebackend.objectstore import MemoryStore
from tests.cli.conftest import Place
from tests.log.swept import HandClock
from tests.rewrite.jobs import JOB, settings_of


def test_a_page_for_people(place: Place) -> None:
    """The newest checkpoint, its key groups, the states, what lies where and why, the savepoints."""
    status, printed = place.run("report")
    assert status == cli.OK
    rows = [line.split() for line in printed.splitlines()]
    assert printed.startswith("job fleet: checkpoint 13 at ")
    assert "batch 3 of query q" in printed
    assert ["legs", "value", '"int"'] in rows
    assert any(row[:2] == ["[0,", "127]"] and row[4] == "B" for row in rows)
    assert any(row[:2] == ["segments", "4"] for row in rows)
    assert any(row[:2] == ["needed", "4"] for row in rows)
    assert any(row[:2] == ["before-migration", "10"] for row in rows)
    assert "too little to estimate the cost of a month" in printed


def test_a_page_for_programs(place: Place) -> None:
    """The same, as JSON."""
    found = json.loads(place.run("report", "--json")[1])
    assert (found["newest"]["checkpoint_id"], found["max_parallelism"]) == (13, 128)
    assert [(row["key_groups"], row["bases"], row["change_sets"]) for row in found["ranges"]] == [("[0, 127]", 0, 4)]
    assert found["changelog_ratio"] is None
    assert found["pace"] is None
    assert found["verdicts"]["savepoint"] == [1, 0]


def test_a_damaged_log_is_told(place: Place) -> None:
    """Without it nothing tells what is garbage."""
    path = place.job / "commits" / f"{4:012d}"
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)
    assert place.run("report")[0] == cli.NOT_UNDERSTOOD


@pytest.mark.parametrize(("minutes", "told"), [(0, False), (1, True), (60, True)])
async def test_a_month_costs_what_the_puts_cost_by_which_this_was_made(minutes: int, told: bool) -> None:
    """By the store's own clock. With three commits and three segments after the claim: six PUTs, at 5 USD a million."""
    clock = HandClock()
    store = MemoryStore(clock=clock)
    settings = settings_of(16, inline_bytes_max=0, materialize_interval_s=0)
    async with sb.open_backend(settings, store=store, clock=clock) as backend:
        for number in range(3):
            clock.now_s += minutes * 20.0
            backend.value_state("n", int)["k"] = number
            await backend.checkpoint(number)
    found = await sb.report(settings, store=store, clock=clock)
    assert (found.pace is not None) == told
    if found.pace is not None:
        assert (found.pace.puts, found.pace.seconds) == (6, minutes * 60.0)
        assert found.pace.usd_month == pytest.approx(6 * 5e-6 / minutes * 60 * 24 * 30)


async def test_bases_count_by_what_is_live_of_them() -> None:
    """The changelog is compared with those bytes. Garbage is what a sweep would call garbage."""
    store = MemoryStore()
    async with sb.open_backend(settings_of(16, inline_bytes_max=0), store=store) as backend:
        backend.value_state("n", str).update(dict.fromkeys(range(1000), "x" * 100))
        await backend.checkpoint(0)
    await sb.rewrite(settings_of(64), store=store)
    settings = settings_of(64, inline_bytes_max=0)
    async with sb.open_backend(settings, store=store) as backend:
        backend.value_state("n", str)[7] = "y"
        await backend.checkpoint(2)
    found = await sb.report(settings, store=store)
    (row,) = found.ranges
    base_bytes, segment_bytes = await _sizes(store)
    assert (row.bases, row.base_bytes) == (1, base_bytes)
    assert row.change_sets == 1
    assert found.changelog_ratio == pytest.approx(row.changelog_bytes / base_bytes)
    assert 0 < row.changelog_bytes < segment_bytes
    assert "orphan" not in found.verdicts


async def _sizes(store: sb.ObjectStore) -> tuple[Any, Any]:
    """Of the base, which was written second, and of the newest segment."""
    infos = sorted([info async for info in store.list(f"{JOB}/segments/")], key=lambda info: info.key)
    return infos[1].size_bytes, infos[2].size_bytes


@pytest.mark.parametrize("kind", ["svg", "html"])
def test_a_page_is_drawn(place: Place, kind: str) -> None:
    """With the same words as the page; an existing file is replaced."""
    pytest.importorskip("rich", reason="the extra cli")
    picture = place.directory / f"report.{kind}"
    picture.write_text("old")
    assert place.run("report", "--picture", str(picture)) == (cli.OK, "")
    drawn = picture.read_text(encoding="utf-8").replace("&#160;", " ")
    assert f"<{kind}" in drawn
    assert "before-migration" in drawn
    assert "needed" in drawn


@pytest.mark.parametrize("name", ["report.png", "report", "no/where.svg"])
def test_a_picture_that_cannot_be_drawn_is_told(place: Place, name: str) -> None:
    """No file is created."""
    pytest.importorskip("rich", reason="the extra cli")
    status, printed = place.run("report", "--picture", str(place.directory / name))
    assert (status, name in printed) == (cli.WRONG_CALL, True)
    assert not (place.directory / name).exists()
