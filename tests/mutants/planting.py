"""Plants one break in the library at import, in this process, and knows the invariants that may notice it.

Import nothing of the library before `plant`: what is imported already stays as it is.
"""

import ast
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import re
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Literal, NamedTuple

ROOT = Path(__file__).parents[2]
NAMED = re.compile(
    r"assert_\w+|_?judge_\w+|acknowledge\w*|decide|check_end|check_invariants|_watch\w*|_lose_newest|_sweep_clean"
)
WITH_INVARIANTS = (
    "tests/invariants.py",
    "statebackend/_changelog/ledger.py",
    "tests/simulation",
    "tests/models/invariants.py",
    "tests/runs/invariants.py",
)
"""Files and folders that have the named invariants."""

Hunter = Literal["simulation", "models", "handover", "kills", "programs", "edits", "runs", "lives"]


class Mutant(NamedTuple):
    """A break: `old` in the source of `module`, which has it once, becomes `new`.

    `invariant` is to notice it, while `hunter` tries so often as `tries` says: seeds of the simulation, from `first`
    on, or of drawn programs; examples of a model, drawn by that seed; jobs handed on, or killed, with that seed.
    `without`: other invariants that are switched off, because they would notice it earlier. `needs`: what the
    traits of a program must contain for the line to matter, with "or"; other seeds count as tries, and are not run.
    """

    name: str
    module: str
    old: str
    new: str
    invariant: str
    first: int = 0
    tries: int = 60
    without: tuple[str, ...] = ()
    hunter: Hunter = "simulation"
    needs: tuple[str, ...] = ()


class StaleError(Exception):
    """The source is not as the mutant expects it: write the mutant anew."""


def invariants() -> Mapping[str, str]:
    """The named invariants, each with its file: functions that assert, and are named so."""
    found: dict[str, str] = {}
    for place in (ROOT / each for each in WITH_INVARIANTS):
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _is_invariant(node):
                    found[node.name] = path.relative_to(ROOT).as_posix()
    return found


def _is_invariant(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """True if it is named so, and asserts by itself or by `_assert_same`."""
    asserts = any(isinstance(each, ast.Assert | ast.Raise) for each in ast.walk(node))
    calls = {each.func.id for each in ast.walk(node) if isinstance(each, ast.Call) and isinstance(each.func, ast.Name)}
    return NAMED.fullmatch(node.name) is not None and (asserts or "_assert_same" in calls)


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


def noticed_by(error: BaseException) -> str:
    """The invariant that has failed: the innermost one in the traceback; or the kind of the error."""
    known = invariants()
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.name in known and known[frame.name] in frame.filename:
            return frame.name
    return "hangs" if isinstance(error, TimeoutError) or "Deadlock" in type(error).__name__ else "undocumented error"
