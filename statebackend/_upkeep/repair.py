"""Puts back commits that the primary has damaged or lost, from the local copies on this host."""

from pathlib import Path

import msgspec

from statebackend._backend.stores import readable_copies, roots_with_copies
from statebackend._local.layout import segments_directory
from statebackend._local.segments import LocalSegments
from statebackend._log.names import COMMITS, sequence_of
from statebackend._log.savepoints import Savepoints
from statebackend._log.spares import Spare, Spares
from statebackend._upkeep.primary import JobPrimary, check_exists, open_job_primary
from statebackend.abc import ObjectStore
from statebackend.errors import InputError
from statebackend.settings import Settings


class Repair(msgspec.Struct, frozen=True):
    """A commit that cannot be read in the primary, and an intact local copy of it, at `path`.

    `proof`: how the log names the copy; `None` if only its place speaks for it, and it may be of a commit that was
    never made. `put_back`: it lies in the primary again.
    """

    key: str
    path: str
    checkpoint_id: int
    committed_at_s: float
    proof: str | None
    put_back: bool


async def repair(settings: Settings, *, dry_run: bool = True, store: ObjectStore | None = None) -> tuple[Repair, ...]:
    """Find the intact local copies of commits that the primary has damaged or lost; put them back unless `dry_run`.

    Opening a job puts back its newest commit by itself if the log proves that the copy is that commit. Here the caller
    decides, so look at the dry run first. Raises `InputError` where there is nothing to look at, because no local root
    is named, none has copies of this job, or the primary has no log of it; `StoreError`. A failed or cancelled call has
    put back some of them.
    """
    if not settings.local:
        raise InputError("repair reads local copies: name the local roots of the job (`local`, or --local)")
    async with open_job_primary(settings, store) as primary:
        check_exists(settings, [end for end in [await primary.log.end()] if end is not None])
        if not await roots_with_copies(settings, primary.threads):
            raise InputError(
                "no local root has copies of this job: correct local, or repair on the host where the job ran",
                local=settings.local,
                job=settings.job,
            )
        found = await spares_here(settings, primary)
        if not dry_run:
            for spare, _ in found:
                await Spares(primary.store, primary.log, None).put_back(spare)
    return tuple(
        Repair(
            key=spare.key,
            path=path,
            checkpoint_id=spare.commit.checkpoint_id,
            committed_at_s=spare.commit.committed_at_s,
            proof=spare.proof,
            put_back=not dry_run,
        )
        for spare, path in found
    )


async def spares_here(settings: Settings, primary: JobPrimary) -> list[tuple[Spare, str]]:
    """The copies in the local roots of commits that the log should have, and that cannot be read there; their paths.

    What lies below the sweep floor was swept, and what lies above the end was never made, as far as the log knows.
    """
    local = readable_copies(settings, None, primary.threads)
    end = await primary.log.end()
    if local is None or end is None:
        return []
    floor = await Savepoints(primary.store, primary.log).floor()
    last = end.sequence if end.lost is None else end.lost.sequence
    spares = Spares(primary.store, primary.log, local)
    found: list[tuple[Spare, str]] = []
    for sequence in [sequence_of(info.key) async for info in local.list(COMMITS)]:
        if sequence is not None and floor <= sequence <= last:
            spare = await spares.find(sequence, end)
            if spare is not None:
                found.append((spare, _path(settings, local, spare.key)))
    return found


def _path(settings: Settings, local: LocalSegments, key: str) -> str:
    return str(segments_directory(Path(settings.local[local.root_of(key)]), settings.job) / key)
