"""Plants one break in the library at import, in this process, and asks which invariant notices it.

Import nothing of the library before `plant`: what is imported already stays as it is.
"""

import ast
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import re
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
NAMED = re.compile(
    r"assert_\w+|_?judge_\w+|acknowledge\w*|decide|check_end|check_invariants|_watch\w*|_lose_newest|_sweep_clean"
)
SIMULATION = ("statebackend/testing/invariants.py", "statebackend/_changelog/ledger.py")
CPU_S = 120
"""A mutant that takes longer hangs, and so is found out."""


class Mutant(NamedTuple):
    """A break: `old` in the source of `module`, which has it once, becomes `new`.

    `invariant` is to notice it within `seeds` of the simulation, from `first` on. `without`: other invariants that are
    switched off for it, because they would notice it earlier.
    """

    name: str
    module: str
    old: str
    new: str
    invariant: str
    first: int = 0
    seeds: int = 60
    without: tuple[str, ...] = ()


class StaleError(Exception):
    """The source is not as the mutant expects it: write the mutant anew."""


class Kill(NamedTuple):
    """The `seed`, by which `invariant` a mutant was found out there, and the error."""

    seed: int
    invariant: str
    error: str


def invariants() -> Mapping[str, str]:
    """The named invariants of the simulation, each with its file: functions that assert, and are named so."""
    found: dict[str, str] = {}
    folder = ROOT / "statebackend/testing/simulation"
    for path in [*(ROOT / each for each in SIMULATION), *sorted(folder.rglob("*.py"))]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and NAMED.fullmatch(node.name)
            if is_named and any(isinstance(each, ast.Assert | ast.Raise) for each in ast.walk(node)):
                found[node.name] = path.relative_to(ROOT).as_posix()
    return found


class _MutatedLoader(importlib.machinery.SourceFileLoader):
    """Compiles the mutated source, and leaves no bytecode."""

    def __init__(self, mutant: Mutant, path: str) -> None:
        super().__init__(mutant.module, path)
        self._mutant = mutant

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path).decode()
        if source.count(self._mutant.old) != 1:
            raise StaleError(f"{self._mutant.module} has it {source.count(self._mutant.old)} times: {self._mutant.old}")
        return compile(source.replace(self._mutant.old, self._mutant.new), self.path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> Any:
        if fullname != self._mutant.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.origin is None:
            raise StaleError(f"there is no module {fullname}")
        return importlib.util.spec_from_file_location(
            fullname, spec.origin, loader=_MutatedLoader(self._mutant, spec.origin)
        )


def plant(mutant: Mutant) -> None:
    """Break this process. Raises `StaleError`."""
    assert mutant.module not in sys.modules, "imported already"
    sys.meta_path.insert(0, _Finder(mutant))
    importlib.import_module(mutant.module)


def hunt(mutant: Mutant) -> Iterator[Kill]:
    """Plant it, and yield its kills, seed by seed."""
    plant(mutant)
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGVTALRM, _hangs)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
    _switch_off(mutant.without)
    yield from _hunt_in_simulation(mutant)


def _hangs(_signal: int, _frame: FrameType | None) -> None:
    raise TimeoutError("it hangs")


def _switch_off(names: Sequence[str]) -> None:
    invariants_module = importlib.import_module("statebackend.testing.invariants")
    job = importlib.import_module("statebackend.testing.simulation.job").SimulatedJob
    for name in names:
        setattr(job if hasattr(job, name) else invariants_module, name, lambda *_, **__: None)


def _hunt_in_simulation(mutant: Mutant) -> Iterator[Kill]:
    simulation = importlib.import_module("statebackend.testing.simulation")
    for seed in range(mutant.first, mutant.first + mutant.seeds):
        try:
            simulation.simulate(seed)
        except simulation.BrokenError as error:
            cause = error.__cause__ or error
            yield Kill(seed, noticed_by(cause), f"{type(cause).__name__}: {cause}")


def noticed_by(error: BaseException) -> str:
    """The invariant that has failed: the innermost one in the traceback; or the kind of the error."""
    known = invariants()
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.name in known and known[frame.name] in frame.filename:
            return frame.name
    return "hangs" if isinstance(error, TimeoutError) or "Deadlock" in type(error).__name__ else "undocumented error"
