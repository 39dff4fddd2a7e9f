"""Takes the inventory of a job: its log, the commits that are retained, its savepoints, and all its other objects.

Reads only, and needs no cooperation from the processes at work. The order of the requests makes the picture true enough
to delete by: the log is listed first, then everything. A savepoint marker is made before its commit, so the markers of
all commits that were seen are seen too. What is made later is not judged by what was seen earlier.
"""

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec

from statebackend._codec.commit import Claim, Commit, Entry
from statebackend._log.log_reader import LogReader
from statebackend._log.milestones import NONE, Milestone
from statebackend._log.mirror_steps import newest_steps
from statebackend._log.names import (
    FLOORS,
    HINT_KEY,
    MIRRORS,
    PROBE_KEY,
    SAVEPOINTS,
    SavepointPin,
    beside_marker,
    erasure_of,
    floor_of,
    marker_of,
    mirror_step_key,
    mirror_step_of,
)
from statebackend._log.savepoint_markers import Savepoints
from statebackend._log.sweeping.retention import SweepReason
from statebackend.abc import Capability, ObjectInfo, ObjectStore
from statebackend.errors import CorruptObjectError, InputError

_Verdicts = dict[str, tuple[SweepReason, str]]


class Inventory(msgspec.Struct, frozen=True):
    """A job as it was seen.

    `retained` are the newest commits of the branch, newest first. `pinned` says of single commits why they are kept.
    `known` has verdicts on the hint, savepoint markers and sweep floors, by key.
    """

    objects: tuple[ObjectInfo, ...]
    end: Entry | None
    retained: tuple[Commit, ...]
    pinned: Mapping[int, str]
    known: Mapping[str, tuple[SweepReason, str]]
    hint: int | None
    """The entry that the hint names."""
    begun_s: float
    """When it was begun, by the monotonic clock."""
    milestones: Mapping[int, Milestone] = NONE
    """Those that stay, of `pinned`."""


def check_can_list(store: ObjectStore) -> None:
    """Raise `InputError` unless the store can list: nothing else finds an object that no commit refers to."""
    if Capability.LIST not in store.capabilities:
        raise InputError(
            "this needs a primary that can list its objects: nothing else finds what nobody refers to",
            needs=Capability.LIST.value,
        )


async def take_inventory(
    store: ObjectStore,
    log: LogReader,
    *,
    listed: Container[int],
    ends: tuple[int, int] | None,
    checkpoints_retained: int,
    begun_s: float,
    log_only: bool = False,
) -> Inventory:
    """Return the job as it is. `listed`: the entries of its log, found before, from `begun_s` on; `ends`: the first
    and the last of them.

    What is made later is not judged. `log_only`: of its objects only savepoint markers and sweep floors, which say what
    of the log is needed.

    Raises `InputError` for a store that cannot list, a `DataError` if an entry that matters is damaged or lost, and
    `WrongJobError`.
    """
    check_can_list(store)
    prefixes = (SAVEPOINTS, FLOORS, MIRRORS) if log_only else ("",)
    objects = tuple([info for prefix in prefixes async for info in store.list(prefix)])
    end = None if ends is None else await log.load(ends[1])
    retained: list[Commit] = []
    if end is not None:
        held = await _held(store, objects)
        async for commit in log.branch(end, listed=listed):
            retained.append(commit)
            if len(retained) >= checkpoints_retained and commit.sequence <= held:
                break
    savepoints, last_sequence = Savepoints(store, log), -1 if end is None else end.sequence
    pinned, known = await _judge_markers(savepoints, objects, last_sequence)
    erasures, erased = await _judge_erasures(savepoints, objects, 0 if ends is None else ends[0], last_sequence)
    # What is older than a commit that erases keys is not retained, however few there are.
    retained = [commit for commit in retained if commit.sequence >= erased]
    if isinstance(end, Claim) and end.base is not None:
        # This writer has not committed yet. Until it does, nothing but its claim tells that the commit is needed.
        pinned[end.base] = f"the writer of epoch {end.epoch} continues it"
    if (now := await log.end()) is not None:
        now.check()
    hint = await log.hint()
    return Inventory(
        objects=objects,
        end=end,
        retained=tuple(retained),
        pinned=pinned,
        known={
            **known,
            **_judge_floors(objects),
            **erasures,
            **_judge_mirrors(objects),
            HINT_KEY: (SweepReason.HINT, "where a search for the end begins"),
            PROBE_KEY: (SweepReason.HINT, "shows that the store keeps put-if-absent"),
        },
        hint=None if hint is None else hint.sequence,
        begun_s=begun_s,
    )


async def _held(store: ObjectStore, objects: Sequence[ObjectInfo]) -> float:
    """The oldest commit that a mirror waits for, and has asked to be kept: as long as it said, by the store's clock."""
    newest_s = max((info.modified_s for info in objects), default=0.0)
    made_s = {info.key: info.modified_s for info in objects}
    held = math.inf
    with suppress(CorruptObjectError):  # its mirror says so; a sweep goes on
        async for name, step in newest_steps(store, made_s):
            if newest_s - made_s[mirror_step_key(name, step.number)] < step.hold_s:
                held = min(held, step.has_sequence)
    return held


async def _judge_markers(
    savepoints: Savepoints, objects: Iterable[ObjectInfo], end: int
) -> tuple[dict[int, str], _Verdicts]:
    """The commits that savepoints keep, and verdicts on the markers and what lies beside them."""
    pinned: dict[int, str] = {}
    known: _Verdicts = {}
    for marker in filter(None, (marker_of(info.key) for info in objects)):
        if (commit := await savepoints.commit_of(marker)) is not None:
            pinned[commit.sequence] = f"savepoint {marker.name!r}"
            known[marker.key] = SweepReason.SAVEPOINT, f"keeps commit {marker.sequence}"
        elif marker.sequence > end:
            known[marker.key] = SweepReason.LIVE, f"commit {marker.sequence} may be about to be made"
        else:
            known[marker.key] = SweepReason.ORPHAN, f"commit {marker.sequence} was not made with it"
    kept = {key for key, (verdict, _) in known.items() if verdict is SweepReason.SAVEPOINT}
    for beside in (found for info in objects if (found := beside_marker(info.key)) is not None):
        marker = beside.marker
        if isinstance(beside, SavepointPin):  # even one that was left behind keeps its commit, from this sweep
            if (commit := await savepoints.commit_of(marker)) is not None:
                pinned.setdefault(commit.sequence, f"savepoint {marker.name!r} is being made")
            known[beside.key] = SweepReason.ORPHAN, f"it did not come to a savepoint of commit {marker.sequence}"
        elif marker.key in kept:
            known[beside.key] = SweepReason.SAVEPOINT, f"epoch {beside.epoch} goes on from commit {marker.sequence}"
        else:
            known[beside.key] = SweepReason.ORPHAN, f"commit {marker.sequence} is no savepoint any more"
    return pinned, known


async def _judge_erasures(
    savepoints: Savepoints, objects: Iterable[ObjectInfo], first: int, end: int
) -> tuple[_Verdicts, int]:
    """Verdicts on the objects that are made before a commit which erases keys, and the newest such commit; 0: none.

    A floor of a sweep takes their place, but not while the log, of which `first` is the oldest entry, has an older
    commit: a floor alone does not tell that those have keys that were erased.
    """
    swept = max((floor_of(info.key) or 0 for info in objects), default=0)
    known: _Verdicts = {}
    newest = 0
    for erasure in filter(None, (erasure_of(info.key) for info in objects)):
        if erasure.sequence > end:
            known[erasure.key] = SweepReason.LIVE, f"commit {erasure.sequence} may be about to be made"
        elif erasure.sequence <= min(swept, first):
            known[erasure.key] = SweepReason.SUPERSEDED, "the log was swept further since"
        elif await savepoints.is_made(erasure):
            known[erasure.key] = SweepReason.HINT, f"commit {erasure.sequence} erased keys that older ones have"
            newest = max(newest, erasure.sequence)
        else:
            known[erasure.key] = SweepReason.ORPHAN, f"commit {erasure.sequence} was not made with it"
    return known, newest


def _judge_mirrors(objects: Iterable[ObjectInfo]) -> _Verdicts:
    steps = (info.key for info in objects if mirror_step_of(info.key) is not None)
    return dict.fromkeys(steps, (SweepReason.MIRROR, "a step of a mirror"))


def _judge_floors(objects: Iterable[ObjectInfo]) -> _Verdicts:
    """Verdicts on the sweep floors: only the highest counts."""
    floors = {info.key: floor for info in objects if (floor := floor_of(info.key)) is not None}
    highest = max(floors.values(), default=0)
    return {
        key: (SweepReason.HINT, "how far the log was swept")
        if floor == highest
        else (SweepReason.SUPERSEDED, "the log was swept further since")
        for key, floor in floors.items()
    }
