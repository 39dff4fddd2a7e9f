"""Erases keys from a job: each object that the newest commit needs, and that has them, is written again without them.

    look at each object -> claim -> write again those that have the keys -> drop savepoints -> mark -> commit

The commit is an edit by hand, and a barrier: what is older cannot be opened any more from the moment it exists, not by
its id, by a moment, nor by a rollback, and the next sweep deletes it. The mark that is made before the commit says so
(`_log/names.py`). The decision is told in `docs/decisions/erased-keys-stay-erased.md`.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec

from statebackend._codec.commit import Commit
from statebackend._log.names import Erasure, floor_key
from statebackend._log.position import Position
from statebackend._log.sweeping.inventory import check_can_list
from statebackend._upkeep.arguments import check_names
from statebackend._upkeep.job_primary import open_job_primary
from statebackend._upkeep.offline.key_search import KeySearch, WantedKeys
from statebackend._upkeep.offline.keys_found import KeyHolder, KeysFound, find_keys
from statebackend._upkeep.offline.offline_commit import Contents, OfflineJob, Uploads, open_offline
from statebackend._upkeep.offline.written_again import WrittenAgain
from statebackend.abc import Clock, ObjectStore
from statebackend.abc.clock import SystemClock
from statebackend.errors import FencedError, InputError
from statebackend.ids import CheckpointId, CommitSequence, Key
from statebackend.settings import Settings

KeptSavepoints = Literal["refuse", "drop"]
"""The choices for savepoints that have the keys: erase nothing, or drop them."""


class EraseReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an erasure, or of a dry run. The keys themselves are not in it.

    `checkpoint_id`: of the new commit; `None` for a dry run, and where the keys had been erased already. `changes`: how
    many stored changes of the keys the checkpoint `read_id` had. `rewritten`: the objects that had them, and were
    written again without. `holders`: the objects that still have them, or may, until a sweep.
    """

    job: str
    read_id: CheckpointId
    keys: int
    states: tuple[str, ...]
    key_groups: tuple[int, ...]
    dry_run: bool
    changes: int = 0
    checkpoint_id: CheckpointId | None = None
    rewritten: tuple[str, ...] = ()
    savepoints_dropped: tuple[str, ...] = ()
    holders: tuple[KeyHolder, ...] = ()
    outputs_pending: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    requests: int = 0


async def erase(
    settings: Settings,
    keys: Iterable[Key],
    *,
    states: Literal["all"] | Sequence[str] = "all",
    savepoints: KeptSavepoints = "refuse",
    dry_run: bool = False,
    store: ObjectStore | None = None,
    clock: Clock | None = None,
) -> EraseReport:
    """Delete these keys from the job's keyed states, or from those named, so that nothing of the job brings them back.

    The newest checkpoint is committed again without the keys; only the objects that have them are written again. Older
    checkpoints cannot be opened any more, and a sweep deletes them when they are an hour old. `savepoints`: what to do
    if savepoints have the keys, "refuse" by default. Stop the stream first: an erasure fences a writer that has the job
    open. Local copies are not touched: the next opening, or a sweep, removes them. `verify_erased` proves the result.

    Raises `InputError` if nothing of the job has the keys, if savepoints have them and may not be dropped, for an
    unknown state, no key, a job without a checkpoint, and a store that cannot list; `KeyTypeError`; `FencedError` if
    another writer opened the job meanwhile; and as `open_backend` and `StateBackend.checkpoint` do. A failed or
    cancelled call may have dropped savepoints, and has changed nothing else: call it again.
    """
    if savepoints not in ("refuse", "drop"):
        raise InputError("savepoints must be 'refuse' or 'drop'", savepoints=savepoints)
    wanted = WantedKeys.of(keys)
    async with open_job_primary(settings, store) as primary:
        check_can_list(primary.store)
        newest, _ = await primary.find()
    wanted = msgspec.structs.replace(wanted, states=state_ids(newest, states))
    settings = msgspec.structs.replace(settings, max_parallelism=newest.max_parallelism)
    opening = open_offline(settings, commits=not dry_run, store=store, clock=clock or SystemClock())
    async with opening as opened:
        once = Erasing(opened, wanted)
        position = await opened.job.look()
        assert position.base is not None, "it was just found"
        found = await once.look(position.base)
        report = once.report(found, dry_run=dry_run)
        if not found.changes and not found.holders and not found.savepoints:
            raise InputError("nothing of the job has these keys: correct keys, states or job", keys=report.keys)
        if savepoints == "refuse" and found.savepoints:
            raise InputError(
                "savepoints have the keys: drop them first, or with savepoints='drop'",
                savepoints=[each.name for each in found.savepoints],
            )
        if not dry_run and not found.is_done:
            report = await once.commit(position, found, report)
        spent = opened.primary.spending
    return msgspec.structs.replace(report, bytes_read=spent.bytes_read, requests=spent.requests.total())


def state_ids(commit: Commit, states: Literal["all"] | Sequence[str]) -> frozenset[int] | None:
    """The ids of these states; `None` for all. Raises `InputError` for a name that the commit does not have, and for
    none.
    """
    check_names(states)
    if states == "all":
        return None
    known = {state.name: state.state_id for state in commit.states}
    if unknown := [name for name in states if name not in known]:
        raise InputError("the job has no state of that name", state=unknown[0], known=", ".join(sorted(known)))
    return frozenset(known[name] for name in states)


class Erasing:
    """Erases `wanted` from one job, once."""

    def __init__(self, opened: OfflineJob, wanted: WantedKeys) -> None:
        self._opened = opened
        self._wanted = wanted
        self._store = opened.primary.store
        self._search: Final = KeySearch(self._store, opened.job.log, wanted, opened.threads)

    def report(self, found: KeysFound, *, dry_run: bool) -> EraseReport:
        """The report before anything is done."""
        commit, ids = found.commit, self._wanted.states
        return EraseReport(
            job=commit.job,
            read_id=commit.checkpoint_id,
            keys=len(self._wanted.keys),
            states=tuple(each.name for each in commit.states if ids is None or each.state_id in ids),
            key_groups=tuple(sorted(self._wanted.groups(commit.max_parallelism))),
            dry_run=dry_run,
            changes=found.changes,
            rewritten=tuple(sorted(found.objects)),
            holders=tuple(found.holders),
            outputs_pending=len(commit.outbox),
        )

    async def look(self, commit: Commit) -> KeysFound:
        """Look at every object of the job that may have the keys."""
        groups = self._wanted.groups(commit.max_parallelism)
        return await find_keys(self._opened, self._search, groups, commit)

    async def commit(self, position: Position, found: KeysFound, report: EraseReport) -> EraseReport:
        """Claim the job, and commit it without the keys that were found. Raises as `erase`."""
        position = await self._opened.job.claim(position)
        if position.base is None or position.base.stamp != found.commit.stamp:
            raise FencedError("the job was committed to meanwhile: stop its stream, and erase again")
        opened, commit = self._opened, found.commit
        again = WrittenAgain(
            commit,
            self._store,
            self._wanted.without,
            keys=found.objects,
            places=found.rocksdb,
            settings=opened.settings,
            threads=opened.threads,
            clock=opened.clock,
            kept=self._search.kept,
        )
        erasure: Erasure | None = None

        async def write(uploads: Uploads) -> Contents:
            return Contents(await again.write(uploads), commit.states, frozenset(found.objects))

        async def before(sequence: int) -> None:
            nonlocal erasure
            for each in found.savepoints:
                await opened.job.savepoints.drop(each.name)
            erasure = Erasure(CommitSequence(sequence), position.epoch)
            await self._store.put(erasure.key, ())  # without the commit it means nothing

        new_id, uploads = await opened.commit(position, write, before=before)
        assert erasure is not None, "it was just made"
        await self._store.put(floor_key(erasure.sequence), ())  # which spares others a look at the commit
        return msgspec.structs.replace(
            report,
            checkpoint_id=new_id,
            bytes_written=uploads.written[1],
            savepoints_dropped=tuple(each.name for each in found.savepoints),
        )
