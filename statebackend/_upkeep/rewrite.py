"""Makes of a checkpoint one with another `max_parallelism`: the same state, every key in the group it has then.

    read every base and change, each key placed anew -> write bases of the new key groups -> commit

The commit is the switch. Before it nothing is visible, after it all of it is; `docs/decisions/rewrite-in-the-log.md`.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Final

import anyio
import msgspec

from statebackend._changelog.scheduler import UploadScheduler
from statebackend._checkpoint.bases import SEGMENT_BYTES_MAX, Piece, base_of, pack
from statebackend._checkpoint.restore import Restore
from statebackend._codec.commit import Commit
from statebackend._codec.records import StateChange
from statebackend._log.coordinator import CheckpointCoordinator
from statebackend._state.declared import KeyedStates
from statebackend._state.operator_state import mode_of
from statebackend._tables.key_groups import OwnedKeys
from statebackend._tasks import in_thread
from statebackend._upkeep.progress import Progress, Tell, reading
from statebackend._upkeep.regrouping import regrouped, regrouped_owners
from statebackend.abc import UploadedSegment
from statebackend.errors import InputError, StoreAccessError, StoreUnavailableError
from statebackend.ids import Base, CheckpointId, RangeState, SnapshotResult, all_key_groups
from statebackend.settings import Settings


class RewriteReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a rewrite has done, or a dry run would do. `keys`: how many each state has.

    `checkpoint_id` is that of the new commit; `None` where there is none: for a dry run, or because `read_id`, the
    checkpoint that was looked at, has that `max_parallelism` already.
    """

    job: str
    read_id: CheckpointId
    max_parallelism_before: int
    max_parallelism: int
    dry_run: bool
    checkpoint_id: CheckpointId | None = None
    keys: Mapping[str, int] = {}
    bytes_read: int = 0
    segments: int = 0
    bytes_written: int = 0
    seconds: float = 0.0
    requests: int = 0
    usd: float = 0.0

    @property
    def is_needed(self) -> bool:
        """Whether there was anything to do."""
        return self.max_parallelism_before != self.max_parallelism


class Rewrite:
    """One rewrite of `base`, into `states`, which are empty and of the new key groups, all of them."""

    def __init__(self, base: Commit, states: KeyedStates, settings: Settings, *, tell: Tell) -> None:
        self._base = base
        self._states = states
        self._settings = settings
        self._tell = tell
        self._keys = OwnedKeys(states.key_groups, settings.max_parallelism)
        self._owners = regrouped_owners(
            base.ranges,
            {each.state_id: mode for each in base.states if (mode := mode_of(each.kind)) is not None},
            settings.max_parallelism,
        )
        self._cpu = anyio.CapacityLimiter(1)
        self._uploaded: list[UploadedSegment] = []  # ours, until a commit may hold them

    async def read(self, restore: Restore) -> int:
        """Fill the states; the bytes that were read for it. Raises as `Restore.run`, and where a key is none."""

        def apply(changes: list[StateChange]) -> frozenset[int]:
            return self._states.replay(regrouped(changes, self._keys))

        owned = all_key_groups(self._base.max_parallelism)
        report = await restore.run(self._base, owned, apply, reading(self._base, self._tell))
        return report.bytes_local + report.bytes_primary

    async def write(self, coordinator: CheckpointCoordinator, scheduler: UploadScheduler) -> CheckpointId:
        """Write the bases, and commit them. Raises as `CheckpointCoordinator.commit`, and what uploading raises.

        Failed or cancelled before its commit was sent, it deletes what it has written. A call that is cancelled later
        finishes first.
        """
        is_sent = False
        try:
            bases = await self._write(scheduler)
            checkpoint_id = coordinator.next_checkpoint_id
            snapshots = self._snapshots(checkpoint_id, coordinator, bases)
            is_sent = True
            await coordinator.commit(checkpoint_id, snapshots, self._base.source)
        except BaseException as error:
            if not is_sent or isinstance(error, (InputError, StoreAccessError, StoreUnavailableError)):  # not made
                with anyio.move_on_after(self._settings.close_timeout_s, shield=True):
                    await scheduler.discard(self._uploaded).wait()
            raise
        return checkpoint_id

    @property
    def written(self) -> tuple[int, int]:
        """Segments that were written, and their bytes."""
        return len(self._uploaded), sum(uploaded.primary.length for uploaded in self._uploaded)

    async def _write(self, scheduler: UploadScheduler) -> Mapping[int, list[Base]]:
        """The bases of each owner, by his place."""
        bases: dict[int, list[Base]] = {place: [] for place in range(len(self._owners))}
        changes = 0
        pieces = self._pieces(self._states.snapshot().changes(frozenset(self._states.key_groups)))
        while (found := await in_thread(next, pieces, None, limiter=self._cpu)) is not None:
            place, piece = found
            changes += sum(len(frame.changes) for frame in piece.frames)
            uploaded = await scheduler.upload_alone(piece.frames)
            self._uploaded.append(uploaded)
            bases[place].append(base_of(piece, uploaded.primary))
            done = piece.key_groups[-1].last + 1
            self._tell(Progress("writing", done / self._settings.max_parallelism, changes, self.written[1]))
        return bases

    def _pieces(self, changes: Iterable[StateChange]) -> Iterator[tuple[int, Piece]]:
        """The segments to be, in the order of their key groups, each of one owner. They are made one by one."""
        firsts: Final = [owner.key_groups.first for owner in self._owners]
        limit_bytes = min(SEGMENT_BYTES_MAX, self._settings.in_flight_bytes_max // 4)
        for place, his in groupby(changes, key=lambda change: bisect_right(firsts, change.key_group) - 1):
            for piece in pack(his, self._owners[place].key_groups, segment_bytes_max=limit_bytes):
                yield place, piece

    def _snapshots(
        self, checkpoint_id: CheckpointId, coordinator: CheckpointCoordinator, bases: Mapping[int, list[Base]]
    ) -> list[SnapshotResult]:
        """What the owners would contribute, if there were any."""
        return [
            SnapshotResult(
                checkpoint_id=checkpoint_id,
                state=RangeState(owner.key_groups, (), tuple(bases[place]), owner.operator),
                local=False,
                epoch=coordinator.epoch,
                states=self._base.states,
            )
            for place, owner in enumerate(self._owners)
        ]
