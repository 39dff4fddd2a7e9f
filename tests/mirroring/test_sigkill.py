"""A mirror that is killed by SIGKILL at a drawn moment, again and again, while the job goes on: the table is the state.

One kill for each target; `MIRROR_KILLS=100` for as many.
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import statebackend as sb
from tests.knobs import replaced
from tests.mirroring.mirrored import SETTINGS, Job, Leg
from tests.mirroring.places import PLACES
from tests.mirroring.servers import postgres

__all__ = ["postgres"]

KILLS = int(os.environ.get("MIRROR_KILLS", "1"))
ROOT = Path(__file__).parents[2]
WORK_S_MAX = 0.25
"""The longest time from a look to the kill: about what a step takes."""


@pytest.mark.timeout(60 + 20 * KILLS)
@pytest.mark.parametrize("name", PLACES)
def test_killed_while_it_mirrors(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    where = request.getfixturevalue("postgres") if "postgres" in name else ""
    place = PLACES[name](where, tmp_path)
    job, chance, struck = JobOnDisk(tmp_path), random.Random(name), 0
    for kill in range(KILLS):
        keys = [f"N{chance.randrange(50)}" for _ in range(20)]
        asyncio.run(job.commit({key: None if chance.random() < 0.2 else Leg("EWR", kill) for key in keys}))
        command = [sys.executable, "-m", "tests.mirroring.mortal", name, where, str(tmp_path), job.settings.primary]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"looks\n"
            time.sleep(chance.random() * WORK_S_MAX)  # the moment is what is drawn
            process.send_signal(signal.SIGKILL)
            struck += process.stdout.read() == b""  # in its first look, where it has work
    mirror = sb.Mirror("legs", to=place.target(), form=place.form)
    asyncio.run(sb.mirror_once(job.settings, mirror))
    assert place.rows() == asyncio.run(job.state())
    print(f"{name}: {struck} of {KILLS} killed in a step")


class JobOnDisk(Job):
    """A job that other processes see."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.store: Any = None
        self.settings = replaced(SETTINGS, primary=f"file://{root}/state")
