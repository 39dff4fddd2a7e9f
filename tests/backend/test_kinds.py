"""Every kind of state through the whole backend: committed, restored from either copy, declared as another type."""

import operator
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

import statebackend as sb
from statebackend.errors import BackendClosedError, StateTypeError
from statebackend.testing import run_virtual
from statebackend.testing.virtual_time import settle
from tests.aggregates import Mean
from tests.backend.conftest import Leg
from tests.checkpoint.bases import Job


def write(backend: sb.StateBackend, turn: int) -> None:
    """One batch for every kind."""
    keys: list[Any] = ["N14228", 42, b"\x00\xff", ("JFK", 7)]
    hops, seen = backend.list_state("hops", Leg), backend.map_state("seen", str, Leg)
    total, mean = backend.reducing_state("total", int, operator.add), backend.aggregating_state("mean", Mean())
    timers = backend.timers("timers")
    for key in keys:
        hops[key].append(Leg("EWR", "IAH", turn))
        seen[key][str(turn % 2)] = Leg("EWR", "IAH", turn)
        total.add(key, turn)
        mean.add(key, turn)
        timers.register(key, turn)
    hops[keys[turn % 4]].clear()
    seen[keys[turn % 4]].pop("0", None)
    list(timers.due(turn - 2))


def read(backend: sb.StateBackend) -> list[Any]:
    """Everything that was written."""
    timers = backend.timers("timers")
    return [
        {key: list(found) for key, found in backend.list_state("hops", Leg).items()},
        {key: dict(found) for key, found in backend.map_state("seen", str, Leg).items()},
        dict(backend.reducing_state("total", int, operator.add)),
        dict(backend.aggregating_state("mean", Mean())),
        {key: timers.registered(key) for key in timers},
    ]


@pytest.mark.parametrize("lost", ["nothing", "second turn", "local"])
async def test_every_kind_comes_back(settings: sb.Settings, tmp_path: Path, lost: str) -> None:
    """Batch after batch, in one process or each in a new one, with the local copy and without."""
    expected: list[Any] = []
    for turn in range(1, 7):
        async with sb.open_backend(settings) as backend:
            if expected:
                assert read(backend) == expected
            write(backend, turn)
            await backend.checkpoint(turn * 10)
            if lost == "nothing":  # and it goes on in the same process
                write(backend, turn + 1)
                await backend.checkpoint(turn * 10 + 1)
            expected = read(backend)
            write(backend, 100)  # and is killed before its checkpoint
        if lost == "local":
            shutil.rmtree(tmp_path / "local")


async def test_types_evolve_from_commit_to_commit(settings: sb.Settings) -> None:
    """A field more, then an upcast, each in a run of its own; an incompatible type opens nothing and loses nothing."""
    async with sb.open_backend(settings) as backend:
        backend.value_state("legs", Leg)["a"] = Leg("EWR", "IAH", 3)
        await backend.checkpoint(1)
    longer = msgspec.defstruct("Leg", [("origin", str), ("dest", str), ("flown", int, 0), ("carrier", str, "??")])
    async with sb.open_backend(settings) as backend:
        backend.value_state("legs", longer)["b"] = longer("LGA", "MIA", 1, "AA")
        await backend.checkpoint(2)
    pair = msgspec.defstruct("Pair", [("ends", tuple[str, str]), ("carrier", str, "none")])
    async with sb.open_backend(settings) as backend:
        with pytest.raises(StateTypeError) as caught:
            backend.value_state("legs", pair)
        assert '"flown":"int"' in str(caught.value)
        assert '"ends"' in str(caught.value)

        def upcast(leg: dict[str, Any]) -> dict[str, Any]:
            return {"ends": (leg["origin"], leg["dest"])} | ({"carrier": leg["carrier"]} if "carrier" in leg else {})

        legs = backend.value_state("legs", pair, migrate=upcast)
        assert dict(legs) == {"a": pair(("EWR", "IAH")), "b": pair(("LGA", "MIA"), "AA")}
        legs["b"] = pair(("SFO", "JFK"))
        await backend.checkpoint(3)
    async with sb.open_backend(settings) as backend:
        legs = backend.value_state("legs", pair, migrate=upcast)
        assert dict(legs) == {"a": pair(("EWR", "IAH")), "b": pair(("SFO", "JFK"))}


async def test_time_to_live_survives_the_process(settings: sb.Settings) -> None:
    """By the times of the batches, not of any wall."""
    now = 100.0
    ttl = sb.TimeToLive(10, lambda: now)
    async with sb.open_backend(settings) as backend:
        backend.value_state("legs", int, ttl=ttl)["a"] = 1
        now = 105.0
        backend.value_state("legs", int, ttl=ttl)["b"] = 2
        await backend.checkpoint(1)
    async with sb.open_backend(settings) as backend:
        now = 112.0
        assert dict(backend.value_state("legs", int, ttl=ttl)) == {"b": 2}


async def test_no_kind_is_declared_on_a_closed_backend(settings: sb.Settings) -> None:
    """What would be written there is gone."""
    async with sb.open_backend(settings) as backend:
        pass
    for declare in (
        lambda: backend.list_state("hops", Leg),
        lambda: backend.map_state("seen", str, Leg),
        lambda: backend.reducing_state("total", int, operator.add),
        lambda: backend.aggregating_state("mean", Mean()),
        lambda: backend.timers("timers"),
    ):
        with pytest.raises(BackendClosedError):
            declare()


async def test_operator_state_comes_back_by_its_mode(settings: sb.Settings) -> None:
    """For the one owner there is, and for two that share: each says who the owners are."""
    async with sb.open_backend(settings) as backend:
        backend.operator_state("offsets", int).extend([1, 2, 3])
        backend.operator_state("rules", str, "broadcast").append("x")
        await backend.checkpoint(1)
        backend.operator_state("offsets", int).append(4)  # and is killed before its checkpoint
    halves = [sb.owners.KeyGroupRange(0, 63), sb.owners.KeyGroupRange(64, 127)]
    shares: list[list[int]] = []
    for part in halves:
        async with sb.open_backend(settings, key_groups=part, owners=halves, read_only=True) as backend:
            shares.append(list(backend.operator_state("offsets", int)))
            assert list(backend.operator_state("rules", str, "broadcast")) == ["x"]
    assert shares == [[1, 2], [3]]
    async with sb.open_backend(settings) as backend:  # declares nothing
        await backend.checkpoint(2)
    async with sb.open_backend(settings) as backend:
        assert list(backend.operator_state("offsets", int)) == [1, 2, 3]
    with pytest.raises(BackendClosedError):
        backend.operator_state("offsets", int)


@pytest.mark.parametrize("held_for", [0, 1, 3])
def test_every_kind_comes_back_from_bases(held_for: int) -> None:
    """A base stands in for the changes before it, exactly: what a list had appended is there once.

    Whether the bases are written at once, or while that many further checkpoints go by.
    """

    @run_virtual
    async def scenario() -> None:
        job = Job(materialize_handles_max=2)
        expected: list[Any] = []
        for life in range(3):
            async with job.open() as backend:
                if expected:
                    assert read(backend) == expected
                for turn in range(1, 9):
                    job.uploader.held = turn % (held_for + 1) != 0
                    write(backend, 8 * life + turn)
                    await backend.checkpoint(10 * life + turn)
                    job.uploader.release()
                    await settle()
                expected = read(backend)
        newest = await job.newest()
        assert newest.ranges[0].bases
        async with job.open(read_only=True) as backend:
            assert read(backend) == expected

    scenario()
