"""A process that mirrors until it is killed. It says before and behind each look, so that its killer knows where it is.

It is forked from one that has imported all that it needs: that takes seconds, and a kill in it strikes nothing.
"""

import multiprocessing
from pathlib import Path
from typing import Any, Final

import anyio

import statebackend as sb
from tests.knobs import replaced
from tests.mirroring.mirrored import SETTINGS
from tests.mirroring.places import PLACES

CONTEXT: Final = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([__name__])

LOOKS: Final = "looks"
HAS_LOOKED: Final = "has looked"


def mirror_for_ever(told: Any, place: str, where: str, root: Path, primary: str) -> None:
    """Mirror the state `legs` into that place, and tell of each look."""
    anyio.run(_run, told, place, where, root, primary)


async def _run(told: Any, place: str, where: str, root: Path, primary: str) -> None:
    found = PLACES[place](where, root, is_new=False)
    settings = replaced(SETTINGS, primary=primary)
    while True:
        told.send(LOOKS)
        await sb.mirror_once(settings, sb.Mirror("legs", to=found.target(), form=found.form))
        told.send(HAS_LOOKED)
