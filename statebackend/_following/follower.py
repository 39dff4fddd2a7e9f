"""A follower: opened on a job's newest commit, it goes on with each new one, and says how old its answers are.

One task looks at the log; reads are synchronous, on the same loop. A commit is applied between two reads and never
within one: see `tables.py`. What goes wrong on the way is told by the position, and tried again at the next look.
"""

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Final, cast

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus

from statebackend._backend.asked_to_open import AskedToOpen, BeforeClaim
from statebackend._backend.assembly import Restored
from statebackend._backend.copy_writers import OpenUploader
from statebackend._backend.opening import open_restorable
from statebackend._backend.tables import Tables
from statebackend._checkpoint.backend import StateBackend
from statebackend._checkpoint.rescale import range_of
from statebackend._codec.commit import Commit
from statebackend._following.following import Following
from statebackend._following.position import FollowerPosition
from statebackend._following.states import FollowedStates, Reads
from statebackend._observers import Observers
from statebackend._state.declared import KeyedStates
from statebackend._tasks import HomeProcess, open_tasks
from statebackend._upkeep.job_primary import open_job_primary
from statebackend.abc import Clock, Fallback, ObjectStore, Observer, RestoreReport, StateChangeUploader
from statebackend.abc.clock import SystemClock
from statebackend.errors import BackendClosedError, InputError, StaleError
from statebackend.ids import KeyGroupRange
from statebackend.settings import Settings

LOOK_EVERY_S: Final = 1.0


class StateFollower(FollowedStates, Reads):
    """The newest committed state of a job, for reading, beside the job. Made by `follow`.

    Declare states and read them as in a backend. Each read is of one commit; `at_one_commit` makes several be of the
    same. It belongs to the loop that opened it, and to one thread.
    """

    def __init__(self, following: Following, tasks: TaskGroup, *, max_staleness_s: float | None) -> None:
        self._following: Final = following
        self._tasks: Final = tasks
        self._max_staleness_s: Final = max_staleness_s
        self._home = HomeProcess()
        self._closed: str | None = None
        self._promoting = anyio.Lock()
        self._backend: StateBackend | None = None
        self._left = anyio.Event()

    @property
    def restored(self) -> RestoreReport:
        """Where the state was read from when the follower was opened, or when it last read a commit anew."""
        return self._following.restored

    @property
    def key_groups(self) -> KeyGroupRange:
        """The key groups that are followed."""
        return self._following.state.key_groups

    @property
    def position(self) -> FollowerPosition:
        """The commit that the answers are of, and how old they may be."""
        return self._following.position

    @contextmanager
    def at_one_commit(self, *, max_staleness_s: float | None = None) -> Generator[FollowerPosition]:
        """Make all reads inside be of the same commit, also beyond an `await`; it yields the position.

        The follower stands still meanwhile: be quick. Raises `StaleError` where the answers are older than
        `max_staleness_s`, as of entering.
        """
        self._check_usable()
        self._check_fresh(max_staleness_s)
        with self._following.held():
            yield self.position

    async def wait_for(
        self, *, batch_id: int | None = None, checkpoint_id: int | None = None, timeout_s: float = 10.0
    ) -> FollowerPosition:
        """Wait until the answers are of this batch or checkpoint, or of a later one: to read what one has written.

        Raises `StaleError`, which has the position, if that takes longer than `timeout_s`.
        """
        if (batch_id is None) == (checkpoint_id is None):
            raise InputError("wait for a batch or for a checkpoint", batch_id=batch_id, checkpoint_id=checkpoint_id)

        def is_there() -> bool:
            position = self.position
            if checkpoint_id is not None:
                return position.checkpoint_id >= checkpoint_id
            return batch_id is not None and position.batch_id is not None and position.batch_id >= batch_id

        self._check_usable()
        with anyio.move_on_after(timeout_s), self._following.waiting():
            while not is_there():
                await self._following.moved()
                self._check_usable()
        if is_there():
            return self.position
        raise self._stale("the follower is not there yet: wait longer", batch_wanted=batch_id, wanted=checkpoint_id)

    async def promote(
        self,
        *,
        uploader: StateChangeUploader | OpenUploader | None = None,
        before_claim: BeforeClaim | None = None,
    ) -> StateBackend:
        """Take the job over: claim it, apply what lies between, and return a backend that goes on from there.

        The state in memory becomes the backend's, and the follower can be read no more. The backend is closed with the
        follower's context. A driver that has the job open is fenced at its next commit. A second call returns the same
        backend. `uploader`: as for `open_backend`. `before_claim`: gets the newest commit; if it raises, the job is not
        claimed, and nobody is fenced.

        Raises `InputError` for a follower of some key groups, as `open_backend`, and what `before_claim` raises. Then
        the follower goes on; what it holds is read anew if it was touched. A cancelled call may have claimed the job.
        """
        async with self._promoting:
            if (backend := self._backend) is None:
                self._check_usable()
                if not self._following.is_whole:
                    raise InputError(
                        "it follows a part of the job: follow all key groups to take it over",
                        key_groups=str(self.key_groups),
                    )
                if self._following.is_held:
                    raise InputError("somebody reads at one commit: promote the follower outside of `at_one_commit`")
                async with self._following.stopped():
                    self._closed = "the follower is being promoted"
                    try:
                        hosted = await self._tasks.start(self._host, uploader, before_claim)
                        backend = self._backend = cast("StateBackend", hosted)
                    except BaseException:
                        self._closed = None
                        self._following.read_anew("a promotion failed")
                        raise
                    self._closed = "the follower was promoted: use the backend"
                    self._following.end()  # or the backend's commits would be applied to its own tables once more
            return backend

    async def _host(
        self,
        uploader: StateChangeUploader | OpenUploader | None,
        before_claim: BeforeClaim | None,
        *,
        task_status: TaskStatus[StateBackend],
    ) -> None:
        """Have the backend open until the follower's context is left, in whichever task it was asked for."""
        async with promoted(self._following, uploader, before_claim) as backend:
            task_status.started(backend)
            await self._left.wait()

    def close(self) -> None:
        """Refuse reads from now on, and close the backend that it has become."""
        self._closed = self._closed or "the follower is closed: open a new one"
        self._left.set()

    # ------------------------------------------------------------------------------------------- what the states ask

    def read_states(self) -> tuple[KeyedStates, object]:
        """The states to read in, and the commit that they are of."""
        self._home.check()
        if self._closed is not None:
            self._check_usable()
        if self._max_staleness_s is not None:
            self._check_fresh(self._max_staleness_s)
        state = self._following.state
        return state.states, state.commit

    def declared_in(self, states: KeyedStates, name: str) -> KeyedStates:
        """As `Reads.declared_in`."""
        state = self._following.state
        described = next((each for each in state.commit.states if each.name == name), None)
        if described is not None:
            states.declare_anew(described)
            return states
        empty = KeyedStates(state.key_groups, state.commit.max_parallelism)
        empty.clock.stand_at(state.commit.clock)
        empty.clock.is_only_read = True
        return empty

    def _reads(self) -> "StateFollower":
        return self

    def _check_usable(self) -> None:
        self._home.check()
        if self._closed is not None:
            raise BackendClosedError(self._closed)

    def _check_fresh(self, max_staleness_s: float | None) -> None:
        if max_staleness_s is not None and not self._following.staleness_s <= max_staleness_s:
            raise self._stale(
                "the answer may be older than that: wait, or look at the store", max_staleness_s=max_staleness_s
            )

    def _stale(self, message: str, **facts: object) -> StaleError:
        error = StaleError(message, position=self.position, **facts)
        error.__cause__ = self._following.problem
        return error


@asynccontextmanager
async def follow(
    settings: Settings,
    *,
    key_groups: KeyGroupRange | None = None,
    every_s: float = LOOK_EVERY_S,
    max_staleness_s: float | None = None,
    wait: bool = False,
    pin: bool = False,
    store: ObjectStore | None = None,
    clock: Clock | None = None,
    observer: Observer | None = None,
) -> AsyncGenerator[StateFollower]:
    """Hold the newest committed state of a job for reading, beside the job, and keep up with it.

        async with sb.follow(settings) as fleet:
            legs = fleet.value_state("legs", Leg)
            legs["N14228"], fleet.position.staleness_s

    Nothing is written, neither to the primary nor to the local copies, nobody is fenced, and nothing is retained for
    it: rights to read and list are enough. It is opened as a backend is, from the local copies first, and then looks
    for a new commit `every_s` seconds. Its settings are those of the job; `max_parallelism` is taken from the commit.

    `key_groups`: follow these alone. `max_staleness_s`: reads raise `StaleError` when their answer may be older.
    `wait`: wait for a job that has no commit yet, which is refused otherwise. `pin`: keep a commit from sweeps while it
    is read; this does write, a pin for that time, and needs the rights to. `store`, `clock`, `observer`: as for
    `open_backend`.

    Raises `InputError` if there is no checkpoint, and as a restore. Later errors end nothing: they are told by
    `position.problem`, and the next look tries again.
    """
    if not every_s > 0:
        raise InputError("the seconds between two looks must be positive", every_s=every_s)
    async with open_job_primary(settings, store) as primary:
        following = Following(
            primary,
            key_groups=key_groups,
            every_s=every_s,
            pin=pin,
            outer_store=store,
            clock=clock or SystemClock(),
            observer=Observers(observer or Observer()),
        )
        try:
            await following.open(wait=wait)
            async with open_tasks() as tasks:
                follower = StateFollower(following, tasks, max_staleness_s=max_staleness_s)
                tasks.start_soon(following.run)
                try:
                    yield follower
                finally:
                    follower.close()
                    following.end()
        finally:
            await following.close()


@asynccontextmanager
async def promoted(
    following: Following,
    uploader: StateChangeUploader | OpenUploader | None,
    before_claim: BeforeClaim | None = None,
) -> AsyncGenerator[StateBackend]:
    """A backend that goes on with the state that is followed, which nobody else reads any more. As `open_backend`.

    The order is what makes it safe: the job is claimed first, so nobody commits any more; then what lies between is
    applied; then the first batch may come. Nothing but the claim is needed, and no lease: a lease says when, not
    whether.
    """
    settings = following.primary.settings
    asked = AskedToOpen(
        msgspec.structs.replace(settings, max_parallelism=following.state.commit.max_parallelism),
        store=following.outer_store,
        uploader=uploader,
        clock=following.clock,
        observer=following.observer,
        warm=_Held(following),
    )
    asked.before_claim = before_claim or asked.before_claim
    async with open_restorable(asked) as backend:
        yield cast("StateBackend", backend)


class _Held:
    """The state that is followed, as a `Warm`."""

    def __init__(self, following: Following) -> None:
        self._following = following

    async def at(self, base: Commit | None) -> tuple[Tables, Restored]:
        """As `Warm.at`."""
        following, begun = self._following, self._following.clock.monotonic()
        before = following.progress.changes
        await following.catch_up(base)
        state = following.state
        part = range_of(state.commit, state.key_groups)
        report = RestoreReport(
            checkpoint_id=state.commit.checkpoint_id,
            sequence=state.commit.sequence,
            files_local=0,
            files_primary=0,
            bytes_local=0,
            bytes_primary=0,
            changes=following.progress.changes - before,
            seconds=following.clock.monotonic() - begun,
            # Of these the host may have no local copy, so a checkpoint that needs them is not called local.
            fallbacks=tuple(Fallback(key, "held by a follower", repaired=False) for key in sorted(part.segments())),
        )
        changed = frozenset(group for handle in part.changelog for group in handle.key_groups)
        tables = msgspec.structs.replace(state.opened, open_table=state.tables.plain)
        return tables, Restored(report, changed)
