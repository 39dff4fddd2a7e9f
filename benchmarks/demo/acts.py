"""The acts: what is done to the streaming process and to its files, and how its recovery must look then."""

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import statebackend as sb
from benchmarks.demo.events import Begun, Committed, Delivered, Event
from benchmarks.demo.places import JOB, PARALLELISM, Places


@dataclass(frozen=True)
class Damage:
    """The damage done to the files while no process ran. `path` is the damaged file, if there is just one."""

    words: str
    path: Path | None = None


@dataclass(frozen=True)
class Act:
    """Kill the process at the first event of kind `moment` from batch `kill_at` on, then do `damage`.

    `expect` gets the report of the next restore, and returns a sentence for each thing that is wrong.
    """

    title: str
    kill_at: int
    moment: Literal["begun", "committed"]
    damage: Callable[[Places], Damage]
    expect: Callable[[sb.RestoreReport, Damage, Places], list[str]]

    def is_due(self, event: Event) -> bool:
        """True if it is time to kill."""
        if self.moment == "begun":
            return isinstance(event, (Begun, Delivered)) and event.batch >= self.kill_at
        return isinstance(event, Committed) and event.batch >= self.kill_at

    @property
    def moment_in_words(self) -> str:
        """The moment of the kill within the batch, in words."""
        return "while it is processed" if self.moment == "begun" else "right after the state's commit"


def plan(days: int) -> tuple[Act, ...]:
    """The three acts, at a half, seven tenths and 85 hundredths of the days."""
    return (
        Act("killed half way", days // 2, "committed", leave_alone, all_from_local),
        Act("local copy deleted", days * 70 // 100, "begun", delete_local_copy, all_from_primary),
        Act("one local file corrupted", days * 85 // 100, "committed", corrupt_one_file, one_from_primary),
    )


def leave_alone(_places: Places) -> Damage:
    """Do nothing beyond the kill."""
    return Damage("nothing else touched")


def delete_local_copy(places: Places) -> Damage:
    """Remove the whole local root."""
    files = len(_local_segments(places))
    shutil.rmtree(places.local)
    return Damage(f"{files} local files deleted")


def corrupt_one_file(places: Places) -> Damage:
    """Flip one bit in the middle of a local file of middle age."""
    segments = _local_segments(places)
    path = segments[len(segments) // 2]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    return Damage(f"one bit of {path.name} flipped", path)


def all_from_local(report: sb.RestoreReport, _damage: Damage, _places: Places) -> list[str]:
    """Expect that nothing came from the primary."""
    return _unmet(
        (report.files_local > 0, f"no file came from the local copy, {report.files_primary} from the primary"),
        (report.files_primary == 0, f"{report.files_primary} files came from the primary"),
        (not report.fallbacks, f"{len(report.fallbacks)} local files could not be used"),
    )


def all_from_primary(report: sb.RestoreReport, _damage: Damage, places: Places) -> list[str]:
    """Expect that nothing came from the local copy. On executors a range may find what another has repaired there."""
    local_max = report.files_primary if places.on_executors else 0
    return _unmet(
        (report.files_primary > 0, "no file came from the primary"),
        (report.files_local <= local_max, f"{report.files_local} files came from a local copy that was deleted"),
    )


def one_from_primary(report: sb.RestoreReport, damage: Damage, places: Places) -> list[str]:
    """Expect only the damaged file from the primary, and repaired. On executors several ranges may read it."""
    assert damage.path is not None
    reasons = [fallback.reason for fallback in report.fallbacks]
    wanted = range(1, PARALLELISM + 1) if places.on_executors else range(1, 2)
    return _unmet(
        (report.files_local > 0, "no file came from the local copy"),
        (report.files_primary in wanted, f"{report.files_primary} files came from the primary, not 1"),
        (len(reasons) == report.files_primary, f"{len(reasons)} local files could not be used, not 1: {reasons}"),
        (all(fallback.repaired for fallback in report.fallbacks), "the damaged file was not repaired"),
        (_equals_primary(damage.path, places), f"{damage.path.name} differs from the primary's file"),
    )


def _unmet(*expectations: tuple[bool, str]) -> list[str]:
    return [sentence for holds, sentence in expectations if not holds]


def _local_segments(places: Places) -> list[Path]:
    """The local files, oldest first."""
    folder = places.local / f"job_{JOB}" / "taskowned"
    return sorted((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_mtime_ns)


def _equals_primary(path: Path, places: Places) -> bool:
    """True if the file equals the primary's, or is gone because new bases replaced it and no restore needs it."""
    if path.exists():
        return places.originals(path.name) == [path.read_bytes()]
    return asyncio.run(_is_unneeded(path.name, places))


async def _is_unneeded(name: str, places: Places) -> bool:
    async with sb.open_backend(places.settings, read_only=True) as backend:
        restored = backend.restored
    return restored is not None and f"segments/{name}" not in {fallback.name for fallback in restored.fallbacks}
