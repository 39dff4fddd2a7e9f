"""Shows what a job consists of: the entries of its log, its savepoints and states, and how much lies where.

Reads every entry of the log and no data. An entry that cannot be read is shown as damaged, not raised; one that is
swept between the listing and the reading is left out.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from statebackend._codec.commit import Claim, Commit, Entry
from statebackend._log.log_reader import LogReader
from statebackend._log.names import entry_key, marker_of, sequence_of
from statebackend._log.savepoint_markers import Savepoints
from statebackend._log.sweeping.inventory import check_can_list
from statebackend._upkeep.job_primary import check_exists, open_job_primary
from statebackend._upkeep.sizes import SizeRow, size_rows, source_of
from statebackend.abc import ObjectInfo, ObjectStore
from statebackend.errors import DataError, MissingObjectError
from statebackend.ids import RestoreSource, SourceMark, StateDescriptor
from statebackend.settings import Settings


class LogRow(msgspec.Struct, frozen=True):
    """One entry of the log. `kind` is "commit", "claim" or "damaged"; `problem` says what the damage is.

    `on_branch`: it is the newest commit, or an ancestor of it. `objects` and `object_bytes`: the objects that it points
    into, except itself. `at_s`: when it was made, Unix time in seconds, by its writer's clock. `restored`: where the
    state was read from when the job, or ranges of it, were opened before this commit; all of them together.
    """

    sequence: int
    kind: str
    size_bytes: int
    epoch: int | None = None
    checkpoint_id: int | None = None
    parent: int | None = None
    at_s: float | None = None
    source: SourceMark | None = None
    objects: int = 0
    object_bytes: int = 0
    on_branch: bool = False
    savepoints: tuple[str, ...] = ()
    problem: str | None = None
    restored: RestoreSource | None = None


class Inspection(msgspec.Struct, frozen=True):
    """A job, as it lies in the primary. `places`: the number of objects and their bytes, by the first part of the key.

    `epoch` is that of the last entry of the log; `log` is in the order of the sequences. `sizes`: of the newest commit.
    """

    job: str
    newest_checkpoint_id: int | None
    epoch: int | None
    log: tuple[LogRow, ...]
    states: tuple[StateDescriptor, ...]
    sizes: tuple[SizeRow, ...]
    places: Mapping[str, tuple[int, int]]


async def inspect(settings: Settings, *, store: ObjectStore | None = None) -> Inspection:
    """Show the job as it lies in the primary, or in `store`. Nothing is written, and nobody is fenced.

    Raises `InputError` if there is no such job or the store cannot list, `WrongJobError`, `StoreError`.
    """
    async with open_job_primary(settings, store) as primary:
        check_can_list(primary.store)
        found = await _inspect(primary.store, primary.log)
    check_exists(settings, found.places)
    return found


async def _inspect(store: ObjectStore, log: LogReader) -> Inspection:
    objects = [info async for info in store.list("")]
    entries: dict[int, Entry | DataError] = {}
    gone: list[int] = []
    infos = {sequence: info for info in objects if (sequence := sequence_of(info.key)) is not None}
    for sequence in infos:
        try:
            entries[sequence] = await log.load(sequence)
        except DataError as error:
            entries[sequence] = error
            if isinstance(error, MissingObjectError):
                gone.append(sequence)
    floor = await Savepoints(store, log).floor() if gone else 0
    for sequence in gone:
        if sequence < floor:  # swept since it was listed: that is no damage
            del entries[sequence]
    newest = _newest(entries)
    branch = _branch(newest, entries)
    names = _names(objects, entries)
    last = [entry for entry in entries.values() if not isinstance(entry, DataError)]
    return Inspection(
        job=log.job,
        newest_checkpoint_id=None if newest is None else newest.checkpoint_id,
        epoch=last[-1].epoch if last else None,
        log=tuple(
            _row(sequence, entry, infos[sequence], on_branch=sequence in branch, savepoints=tuple(names[sequence]))
            for sequence, entry in sorted(entries.items())
        ),
        states=() if newest is None else newest.states,
        sizes=() if newest is None else size_rows(newest),
        places=totals((place_of(info.key), info.size_bytes) for info in objects),
    )


def _newest(entries: Mapping[int, Entry | DataError]) -> Commit | None:
    commits = [entry for _, entry in sorted(entries.items()) if isinstance(entry, Commit)]
    return commits[-1] if commits else None


def _branch(newest: Commit | None, entries: Mapping[int, Entry | DataError]) -> set[int]:
    branch: set[int] = set()
    current: Entry | DataError | None = newest
    while isinstance(current, Commit):
        branch.add(current.sequence)
        current = None if current.parent is None else entries.get(current.parent)
    return branch


def _names(objects: list[ObjectInfo], entries: Mapping[int, Entry | DataError]) -> dict[int, list[str]]:
    names: dict[int, list[str]] = {sequence: [] for sequence in entries}
    for marker in filter(None, (marker_of(info.key) for info in objects)):
        entry = entries.get(marker.sequence)
        if isinstance(entry, Commit) and marker.names(entry):  # not a marker whose commit was never made
            names[marker.sequence].append(marker.name)
    return names


def _row(
    sequence: int, entry: Entry | DataError, info: ObjectInfo, *, on_branch: bool, savepoints: tuple[str, ...]
) -> LogRow:
    if isinstance(entry, DataError):
        return LogRow(sequence, "damaged", info.size_bytes, problem=str(entry))
    if isinstance(entry, Claim):
        return LogRow(
            sequence, "claim", info.size_bytes, entry.epoch, parent=entry.base or entry.newest, at_s=entry.claimed_at_s
        )
    handles = {handle for part in entry.ranges for handle in part.objects()}
    handles |= {part for output in entry.outbox for part in output.parts}
    others = [handle for handle in handles if handle.key != entry_key(sequence)]
    return LogRow(
        sequence,
        "commit",
        info.size_bytes,
        entry.epoch,
        entry.checkpoint_id,
        entry.parent,
        entry.committed_at_s,
        entry.source,
        objects=len(others),
        object_bytes=sum(handle.length for handle in others),
        on_branch=on_branch,
        savepoints=savepoints,
        restored=source_of(entry),
    )


def place_of(key: str) -> str:
    """The first part of the key: `segments`, `commits` and so on."""
    return key.partition("/")[0]


def totals(sizes: Iterable[tuple[str, int]]) -> Mapping[str, tuple[int, int]]:
    """The number of objects and their bytes, by name."""
    counts, added = Counter[str](), Counter[str]()
    for name, size_bytes in sizes:
        counts[name] += 1
        added[name] += size_bytes
    return {name: (counts[name], added[name]) for name in sorted(counts)}
