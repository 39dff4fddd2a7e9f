"""Runs the model in Promela, `protocol.pml`, by Spin from Debian's packages and the machine's C compiler.

python -m tests.explore.spin FOLDER     unpack Spin there, unless done already; status 3 if this machine cannot
"""

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.debian import run_program, unpack
from benchmarks.servers import ServerError
from tests.explore.judging import ACKNOWLEDGED, NO_GOING_BACK, ONE, SWEPT, TWICE, WHOLE_STATES

SPIN_ROOT: Final = "SPIN_ROOT"
"""The environment variable that says where Spin is unpacked. `nox -s explore` sets it."""
CANNOT_STATUS: Final = 3
MODEL: Final = Path(__file__).with_name("protocol.pml")

SCENARIOS: Final[Mapping[str, Sequence[str]]] = {
    "two drivers, an answer is lost, one is started again": ("WITH_B", "LOST=1", "LIVES=1"),
    "a commit becomes a savepoint beside a driver and a sweep": ("WITH_KEEPER", "WITH_SWEEP"),
    "a driver, a sweep and a reader": ("WITH_SWEEP", "WITH_READER"),
    "an old commit is opened beside a driver and a sweep": ("WITH_BACK", "WITH_SWEEP"),
    "a driver sleeps, while another one commits and sweeps": ("WITH_B", "WITH_SWEEP", "WITH_HOUR", "AFTER_B"),
}
BREAKS: Final[Sequence[tuple[str, str, Sequence[str]]]] = (
    (ONE, "NO_STAMP", ("WITH_B", "LOST=1")),
    (ONE, "NO_LATE_CHECK", ("WITH_B", "WITH_SWEEP", "WITH_HOUR", "AFTER_B")),
    (ACKNOWLEDGED, "NO_LOOK_AFTER_RACE", ("WITH_B",)),
    (TWICE, "NO_REPLAY", ("LIVES=1",)),
    (NO_GOING_BACK, "NO_READ_AGAIN", ("WITH_SWEEP",)),
    (NO_GOING_BACK, "NO_HINT_MOVE", ("WITH_SWEEP",)),
    (WHOLE_STATES, "TORN", ("WITH_READER",)),
    (SWEPT, "NO_CLAIMS", ("WITH_BACK", "WITH_SWEEP")),
    (SWEPT, "NO_FLOOR", ("WITH_KEEPER", "WITH_SWEEP")),
    (SWEPT, "NO_PIN", ("WITH_KEEPER", "WITH_SWEEP")),
)
"""The invariant, the macro that leaves its rule out, and a scenario in which that is found."""

ASSERTIONS: Final[Mapping[str, Sequence[str]]] = {
    ONE: ("((at<ends)&&(made[at]==mine))",),
    ACKNOWLEDGED: ("acknowledged& ~(holds",),
    TWICE: ("holds[base]&batch",),
    NO_GOING_BACK: ("(made[at]==mine)", "(n==newest)", "found>=began"),
    WHOLE_STATES: ("(floor>found)",),
    SWEPT: ("(needs[c]& ~(data))==0", " 0 "),
}
"""A part of each assertion of the model, as Spin prints it, by the invariant that it stands for."""


class Checked(NamedTuple):
    """`complete`: every state was visited, which is not so where an assertion failed before."""

    states: int
    depth: int
    complete: bool
    violated: str | None


def check(*macros: str) -> Checked:
    """Let Spin visit the states of the model with these macros defined. Raises `ServerError`."""
    spin = shutil.which("spin", path=f"{os.environ.get(SPIN_ROOT, '')}/usr/bin:{os.environ.get('PATH', '')}")
    if spin is None or shutil.which("gcc") is None:
        raise ServerError("needs spin and gcc: `nox -s explore` gets the first one")
    with tempfile.TemporaryDirectory(prefix="spin-") as name:
        directory, variables = Path(name), {**os.environ}
        run_program([spin, *(f"-D{macro}" for macro in macros), "-a", str(MODEL)], variables, directory)
        run_program(["gcc", "-O1", "-w", "-DSAFETY", "-o", "pan", "pan.c"], variables, directory)
        said = run_program(["./pan", "-m1000000", "-w22"], variables, directory)
    stored, depth = re.search(r"(\d+) states, stored", said), re.search(r"depth reached (\d+)", said)
    if stored is None or depth is None:
        raise ServerError(f"spin has said something else: {said[-1000:]}")
    violated = re.search(r"assertion violated( .* )\(at depth", said)
    complete = violated is None and "errors: 0" in said and "Search not completed" not in said
    return Checked(int(stored[1]), int(depth[1]), complete, None if violated is None else violated[1])


def main() -> None:
    """Unpack Spin, or say why not."""
    try:
        unpack(Path(sys.argv[1]), "spin")
        if shutil.which("gcc") is None:
            raise ServerError("no gcc here")
    except ServerError as error:
        print(error)
        raise SystemExit(CANNOT_STATUS) from None


if __name__ == "__main__":
    main()
