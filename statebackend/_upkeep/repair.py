"""Puts back what the primary has damaged or lost, from the local copies on this host."""

import msgspec

from statebackend._backend.stores import roots_with_copies
from statebackend._codec.commit import Commit
from statebackend._log.spares import Spares
from statebackend._upkeep.arguments import check_settings
from statebackend._upkeep.job_primary import check_exists, open_job_primary
from statebackend._upkeep.progress import Tell
from statebackend._upkeep.verify import Verification, spares_here
from statebackend.abc import Capability, ObjectStore
from statebackend.errors import InputError
from statebackend.settings import Settings


class Repair(msgspec.Struct, frozen=True):
    """An object that cannot be read in the primary, and an intact local copy of it, at `path`.

    It is a commit, or the commit is the newest that needs it. `proof`: how the log names the copy; `None` if only its
    place speaks for it, and it may be of a commit that was never made. `put_back`: it lies in the primary again.
    """

    key: str
    path: str
    checkpoint_id: int
    committed_at_s: float
    proof: str | None
    put_back: bool

    @classmethod
    def of(cls, key: str, path: str, commit: Commit, *, proof: str | None, put_back: bool) -> "Repair":
        """The local copy of that commit, or of an object that it needs."""
        return cls(key, path, commit.checkpoint_id, commit.committed_at_s, proof, put_back)


async def repair(
    settings: Settings, *, dry_run: bool = True, store: ObjectStore | None = None, tell: Tell = lambda _: None
) -> tuple[Repair, ...]:
    """Find the intact local copies of what the primary has damaged or lost; put them back unless `dry_run`.

    First commits, then what the retained ones need: the latter only in a store that can list, and after reading all of
    it, as `verify` does. Opening a job puts back its newest commit by itself if the log proves that the copy is that
    commit. Here the caller decides, so look at the dry run first. `tell` is called as by `verify`.

    Raises `InputError` where there is nothing to look at, because no local root is named, none has copies of this job,
    or the primary has no log of it; `StoreError`. A failed or cancelled call has put back some of them.
    """
    check_settings(settings)
    if not settings.local:
        raise InputError("repair reads local copies: name the local roots of the job (`local`, or --local)")
    found: list[Repair] = []
    async with open_job_primary(settings, store) as primary:
        check_exists(settings, [end for end in [await primary.log.end()] if end is not None])
        if not await roots_with_copies(settings, primary.threads):
            raise InputError(
                "no local root has copies of this job: correct local, or repair on the host where the job ran",
                local=settings.local,
                job=settings.job,
            )
        for spare, path in await spares_here(settings, primary):
            if not dry_run:
                await Spares(primary.store, primary.log, None).put_back(spare)
            found.append(Repair.of(spare.key, path, spare.commit, proof=spare.proof, put_back=not dry_run))
        if Capability.LIST in primary.store.capabilities:
            verification = Verification(settings, primary)
            await verification.run(tell)
            commits = {each.key for each in found}
            async for object_, path in verification.spares():
                if object_.key in commits:  # a later commit points into it
                    continue
                if not dry_run:
                    await primary.store.put(object_.key, (object_.body,))
                proof = f"checkpoint {object_.commit.checkpoint_id} names its length and checksum"
                found.append(Repair.of(object_.key, path, object_.commit, proof=proof, put_back=not dry_run))
    return tuple(found)
