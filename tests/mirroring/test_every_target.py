"""Whatever happens to a job and to its mirror: the table comes to equal the state, in each target."""

import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

import statebackend as sb
from statebackend._mirroring.target import check_form
from statebackend.errors import InputError
from statebackend.testing import Fail, FaultyStore
from tests.log.swept import HOUR_S
from tests.mirroring.mirrored import EWR, JFK, LGA, Job, Leg
from tests.mirroring.places import PLACES, Killed, KilledError, Place
from tests.mirroring.servers import postgres

__all__ = ["postgres"]

KEYS = "abcdefgh"


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    where = request.getfixturevalue("postgres") if "postgres" in request.param else ""
    return PLACES[request.param](where, tmp_path)


class Seat(msgspec.Struct):
    """A later version of a leg."""

    origin: str
    miles: int
    seats: int = 7


class Life:
    """A job and its mirror, to which things happen that chance decides."""

    def __init__(self, place: Place, seed: int) -> None:
        self.place = place
        self.chance = random.Random(seed)
        self.job = Job(
            checkpoints_retained=2,
            inline_bytes_max=self.chance.choice([0, 10_000]),
            materialize_handles_max=self.chance.choice([1, 512]),  # each opening brings a base, or none does
        )
        self.type: Any = Leg
        self.told: list[str] = []

    async def commit(self, **opening: Any) -> None:
        legs: dict[str, Any] = {
            key: self.chance.choice(
                [None, self.type(self.chance.choice(["EWR", "", 'a"\n,\\']), self.chance.randrange(99))]
            )
            for key in self.chance.sample(KEYS, 3)
        }
        await self.job.commit(legs, type_=self.type, **opening)

    async def back(self) -> None:
        """The job goes on from an older checkpoint."""
        older = self.job.next_id - self.chance.randrange(2, 4)
        try:
            await self.commit(checkpoint_id=max(1, older))
        except sb.errors.CheckpointNotFoundError:
            await self.commit()

    async def erase(self) -> None:
        with suppress(InputError):  # nothing has the key
            await sb.erase(self.job.settings, [self.chance.choice(KEYS)], store=self.job.store, clock=self.job.clock)
            self.job.next_id += 1

    async def sweep(self) -> None:
        self.job.clock.now_s += 25 * HOUR_S
        await self.commit()
        await sb.sweep(self.job.settings, dry_run=False, store=self.job.store, clock=self.job.clock)

    async def evolve(self) -> None:
        self.type = Seat
        await self.commit()

    async def killed(self) -> None:
        target = Killed(self.place.target(), self.chance.randrange(1, 5), after=self.chance.random() < 0.5)
        death = Fail(nth=self.chance.randrange(1, 30), onwards=True, moment=self.chance.choice(["before", "after"]))
        with suppress(KilledError, sb.StateBackendError):
            await self.job.mirror(target, form=self.place.form, store=FaultyStore(self.job.store, [death]))

    async def mirror(self) -> None:
        report = await self.job.mirror(self.place.target(), form=self.place.form)
        self.told += report.anew
        assert self.place.rows() == await self.job.state()

    async def run(self, steps: int) -> None:
        """Live so long."""
        await self.commit()
        await self.job.commit({"a": EWR})
        happens: list[tuple[Callable[[], Any], int]] = [
            (self.commit, 6),
            (self.mirror, 5),
            (self.killed, 5),
            (self.back, 2),
            (self.erase, 1),
            (self.sweep, 1),
            (self.evolve, 1),
        ]
        for one in self.chance.choices([each for each, _ in happens], [weight for _, weight in happens], k=steps):
            await one()
        await self.mirror()


@pytest.mark.parametrize("seed", range(2))
async def test_a_life(place: Place, seed: int) -> None:
    await Life(place, seed).run(25)


async def test_a_look_that_finds_nothing_new_tells_the_view_as_well(place: Place) -> None:
    """Of a process that has just begun, too: it has not read the columns from the state."""
    job = Job()
    await job.commit({"a": EWR})
    before = await job.mirror(place.target(), form=place.form)
    after = await job.mirror(place.target(), form=place.form)
    assert (after.commits, after.rows, after.view) == (0, 0, before.view)
    assert (after.checkpoint_id, after.committed_at_s) == (before.checkpoint_id, before.committed_at_s)
    assert (after.view is None) == (check_form(place.target(), place.form) == "table")


async def test_a_table_of_an_empty_state_is_not_taken_for_one_that_was_emptied(place: Place) -> None:
    """Each process that began took the whole state once more, and said so, as long as the state had no key."""
    job = Job()
    await job.commit({"a": EWR})
    await job.mirror(place.target(), form=place.form)
    await job.commit({"a": None})
    await job.mirror(place.target(), form=place.form)
    for _ in range(2):
        report = await job.mirror(place.target(), form=place.form)
        assert (report.steps, report.anew) == (0, ())
    await job.commit({"b": LGA})
    report = await job.mirror(place.target(), form=place.form)
    assert (report.steps, report.rows, report.anew) == (1, 1, ())
    assert place.rows() == await job.state()


async def test_killed_at_every_step(place: Place) -> None:
    """Before and after each call to the table. Requests to the primary do not depend on it: see `test_log.py`."""
    job = Job()
    await job.commit({"a": EWR, "b": JFK})
    number = 0
    for after in (False, True):
        for nth in count(1):
            number += 1
            await job.commit({"a": Leg("LGA", number), "b": None if number % 2 else JFK})
            try:
                await job.mirror(Killed(place.target(), nth, after=after), form=place.form)
            except KilledError:
                await job.mirror(place.target(), form=place.form)
                assert place.rows() == await job.state()
            else:
                break
        assert nth == 4


async def test_a_late_one_does_nothing(place: Place) -> None:
    """It has read an old state when it sleeps; when it goes on to write, others have gone further."""
    job = Job()
    await job.commit({"a": EWR, "b": EWR})
    await job.mirror(place.target(), form=place.form)
    await job.commit({"a": LGA, "b": None})

    class Late(Killed):
        is_late = True

        async def write(self, rows: Any) -> None:
            if not self.is_late:
                await self._target.write(rows)
                return
            self.is_late = False
            await job.mirror(place.target(), form=place.form)
            await job.commit({"a": None, "b": JFK})
            await job.mirror(place.target(), form=place.form)
            assert place.rows() == await job.state()
            await self._target.write(rows)
            assert place.rows() == await job.state()

    await job.mirror(Late(place.target(), 99, after=True), form=place.form)
    assert place.rows() == await job.state()
    await job.commit({"c": EWR})
    await job.mirror(place.target(), form=place.form)
    assert place.rows() == await job.state()


async def test_two_at_once(place: Place) -> None:
    """Each ends well, whoever is the quicker: the other finds the step done, and goes on from there."""
    job = Job()
    for number in range(4):
        await job.commit({"a": Leg("EWR", number), f"n{number}": EWR})
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(partial(job.mirror, place.target(), form=place.form))
        assert place.rows() == await job.state()
