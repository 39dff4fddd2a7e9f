"""A mirror that is killed by SIGKILL at a drawn moment, again and again, while the job goes on: the table is the state.

One kill for each target; `MIRROR_KILLS=100` for as many. One in five is followed by a look that nobody kills: the
others pile up.
"""

import asyncio
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

import statebackend as sb
from tests.knobs import replaced
from tests.mirroring.mirrored import SETTINGS, Job, Leg
from tests.mirroring.mortal import CONTEXT, HAS_LOOKED, LOOKS, mirror_for_ever
from tests.mirroring.places import PLACES, Place
from tests.mirroring.servers import postgres

__all__ = ["postgres"]

KILLS = int(os.environ.get("MIRROR_KILLS", "1"))
ANSWER_S_MAX = 60.0


@pytest.mark.timeout(120 + 20 * KILLS)
@pytest.mark.parametrize("name", PLACES)
def test_killed_while_it_mirrors(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    where = request.getfixturevalue("postgres") if "postgres" in name else ""
    place = PLACES[name](where, tmp_path)
    job, chance = JobOnDisk(tmp_path), random.Random(name)
    killer = Killer(chance, name, where, tmp_path, job.settings.primary)
    for kill in range(KILLS):
        keys = [f"N{chance.randrange(50)}" for _ in range(20)]
        asyncio.run(job.commit({key: None if chance.random() < 0.2 else Leg("EWR", kill) for key in keys}))
        killer.kill()
        if chance.random() < 0.2:
            _check(job, place)
    _check(job, place)
    print(f"{name}: {killer.struck} of {KILLS} killed in a step")


def _check(job: "JobOnDisk", place: Place) -> None:
    asyncio.run(sb.mirror_once(job.settings, sb.Mirror("legs", to=place.target(), form=place.form)))
    assert place.rows() == asyncio.run(job.state())


class Killer:
    """Starts mirrors and kills them. `struck`: how many were in their first look, which has work."""

    def __init__(self, chance: random.Random, *mirror: Any) -> None:
        self.struck = 0
        self._chance = chance
        self._mirror = mirror
        self._look_s = 0.25  # a bit more than a look takes, as the last ones tell

    def kill(self) -> None:
        """Start one, and kill it at a drawn moment of its first look, or right behind that."""
        mine, its = CONTEXT.Pipe(duplex=False)
        process = CONTEXT.Process(target=mirror_for_ever, args=(its, *self._mirror))
        process.start()
        its.close()
        assert mine.poll(ANSWER_S_MAX), "it does not begin"
        assert mine.recv() == LOOKS
        begun_s = time.monotonic()
        if mine.poll(self._chance.random() * self._look_s):  # the moment is what is drawn
            assert mine.recv() == HAS_LOOKED
            self._look_s = (self._look_s + 1.25 * (time.monotonic() - begun_s)) / 2
        else:
            self.struck += 1
            self._look_s *= 1.05
        process.kill()
        process.join()
        mine.close()


class JobOnDisk(Job):
    """A job that other processes see."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.store: Any = None
        self.settings = replaced(SETTINGS, primary=f"file://{root}/state")
