"""A process that mirrors until it is killed: `python -m tests.mirroring.mortal PLACE WHERE ROOT PRIMARY`.

It prints a line before each look, so that whoever kills it knows that it is at work.
"""

import sys
from pathlib import Path

import anyio

import statebackend as sb
from tests.knobs import replaced
from tests.mirroring.mirrored import SETTINGS
from tests.mirroring.places import PLACES


async def run(place: str, where: str, root: str, primary: str) -> None:
    found = PLACES[place](where, Path(root), is_new=False)
    settings = replaced(SETTINGS, primary=primary)
    while True:
        print("looks", flush=True)
        await sb.mirror_once(settings, sb.Mirror("legs", to=found.target(), form=found.form))


if __name__ == "__main__":
    anyio.run(run, *sys.argv[1:])
