"""The requests by which a sweep changes a job: it raises the floor, looks for claims, deletes. `log_sweep.py` says why.

Each is safe alone: a sweep may be killed between any two of them.
"""

from collections.abc import Container, Sequence
from typing import Final

import msgspec

from statebackend._log.log_reader import LogReader
from statebackend._log.log_writer import LOG_CONTACT_MAX_S
from statebackend._log.milestones import floor_content
from statebackend._log.names import HINT_KEY, SAVEPOINTS, beside_marker, floor_key, floor_of, hint_of, marker_of
from statebackend._log.savepoint_markers import Savepoints
from statebackend._log.sweeping.inventory import Inventory
from statebackend._tasks import in_order
from statebackend.abc import Clock, ObjectStore
from statebackend.errors import StoreError
from statebackend.objectstore.scoped import delete_many, deletes_many

BATCH_MAX: Final = 1000
"""Most objects deleted in one call, for a store that deletes many at once."""


class SweepFailure(msgspec.Struct, frozen=True):
    """An object that could not be deleted. The next sweep tries again."""

    key: str
    reason: str


class SweepRequests:
    """Changes one job in its primary. `log` reads the same job."""

    def __init__(self, store: ObjectStore, log: LogReader, *, clock: Clock, concurrency_max: int) -> None:
        self._store = store
        self._log = log
        self._clock = clock
        self._concurrency_max = concurrency_max

    async def raise_floor(self, floor: int, found: Inventory) -> str | None:
        """Record how far this sweep goes, and its milestones, and move the hint if it is below.

        Returns why the sweep must stop, if so.

        A search for the end that began below the floor would probe where entries are missing. The hint is written only
        if the end was seen not long ago: then no other sweep can have gone beyond it. Raises `StoreError`.
        """
        if found.end is None:
            return None
        content = floor_content(found.milestones.values())
        sizes = _floor_sizes(found)
        highest = max((floor, *sizes))  # which counts: what this sweep gives up must not be named there any more
        if highest and (highest not in sizes or content or sizes[highest]):
            await self._store.put(floor_key(highest), [content])
        if found.hint is not None and found.hint < floor:
            if self._clock.monotonic() - found.begun_s > LOG_CONTACT_MAX_S:
                return "the look at the job took too long: sweep again"
            await self._store.put(HINT_KEY, (hint_of(found.end),))
        return None

    async def wanted_again(self, floor: int, keep: Container[int], found: Inventory) -> str | None:
        """Return why the sweep must stop: since its look, somebody continues or keeps a commit that it would break."""
        for claim in await self._log.claims_after(-1 if found.end is None else found.end.sequence):
            if claim.base is not None and claim.base < floor and claim.base not in keep:
                return f"a writer has opened commit {claim.base} meanwhile: sweep again when it has committed"
        for key in [info.key async for info in self._store.list(SAVEPOINTS) if info.key not in found.known]:
            beside = beside_marker(key)
            marker = marker_of(key) if beside is None else beside.marker
            if marker is not None and marker.sequence < floor and marker.sequence not in keep:
                return f"commit {marker.sequence} is becoming savepoint {marker.name!r}: sweep again"
        if found.milestones or any(_floor_sizes(found).values()):
            _, named = await Savepoints(self._store, self._log).milestones()
            if any(sequence not in keep for sequence in named):
                return "another sweep keeps other commits for their age: sweep again"
        return None

    async def delete_all(self, keys: Sequence[str]) -> tuple[list[str], list[SweepFailure]]:
        """Delete in the order given, several at a time or in batches. Returns the deleted keys and the failures."""
        deleted: list[str] = []
        failures: list[SweepFailure] = []
        if deletes_many(self._store):
            for batch in (keys[begin : begin + BATCH_MAX] for begin in range(0, len(keys), BATCH_MAX)):
                try:
                    await delete_many(self._store, batch)
                except StoreError:  # one by one shows which of them failed; deleting one that is gone is no error
                    await self._delete_each(batch, deleted, failures)
                else:
                    deleted += batch
        else:
            await self._delete_each(keys, deleted, failures)
        return deleted, failures

    async def _delete_each(self, keys: Sequence[str], deleted: list[str], failures: list[SweepFailure]) -> None:
        async def delete(key: str) -> SweepFailure | None:
            try:
                await self._store.delete(key)
            except StoreError as error:
                return SweepFailure(key, str(error))
            return None

        async def note(key: str, failure: SweepFailure | None) -> None:
            if failure is None:
                deleted.append(key)
            else:
                failures.append(failure)

        await in_order(keys, delete, note, concurrency_max=self._concurrency_max)


def _floor_sizes(found: Inventory) -> dict[int, int]:
    """The bytes of each sweep floor that was there: none, where it names no milestones."""
    floors = ((floor_of(info.key), info.size_bytes) for info in found.objects)
    return {floor: size_bytes for floor, size_bytes in floors if floor is not None}
