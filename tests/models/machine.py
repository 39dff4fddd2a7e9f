"""One job, driven through all that may happen to it, against dictionaries.

What is committed is what the dictionaries held at the snapshot: after every step what the crew has is what the model
says, and whoever opens the job has the newest commit, or an error, and never anything else.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar, Literal, TypeVar

import anyio
import msgspec
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import statebackend as sb
from statebackend._codec.plain import plain
from statebackend._tables.key_groups import key_group
from statebackend.errors import (
    CheckpointNotFoundError,
    DataError,
    InputError,
    OutcomeUnknownError,
    SavepointExistsError,
    StateBackendError,
    StoreAccessError,
    StoreError,
    StoreUnavailableError,
    UploadError,
)
from statebackend.testing import Fail, Fault, FaultyStore
from tests.models import invariants
from tests.models.contents import OPERATOR_STATES, Contents, Pairs, Report, shares
from tests.models.crew import MAX_PARALLELISM, RETAINED, Copied, Crew, Owner, Plan, settings_in
from tests.models.kinds import CLEARED, Kinds, draw_operation
from tests.models.places import HOSTS, InMemory, OnDisk, Places
from tests.runs.heavy_rows import NEARLY, OUTGROWN, ROOMY, heavy_rows

T = TypeVar("T")
Moment = Literal["before", "after"]

Work = tuple[int, int]
"""How many operations, and the seed of the chance by which they are chosen."""

WORK: st.SearchStrategy[Work] = st.tuples(st.integers(0, 50), st.integers(0, 2**32))
CHOICES = st.integers(0, 2**16)  # taken modulo what there is: names and sizes differ from run to run
MOMENTS: st.SearchStrategy[Moment] = st.sampled_from(["before", "after"])
READ = ("counts", "lists", "maps", "totals", "timers", "alarms", "rung", "rows")
"""States that are read as rows."""
COUNTED = ("values", "counts", "lists", "maps", "totals", "spreads", "rows")
"""States of which a commit says how many keys there are; where a key lives until it is removed."""
SAVEPOINTS = st.sampled_from([None, None, None, "blue", "green"])


def plans(tables: st.SearchStrategy[Any], **more: st.SearchStrategy[Any]) -> st.SearchStrategy[Plan]:
    """Every way to open a job, with `more` settings."""
    settings = {
        "table": tables,
        "table_memory_bytes": st.just(4 << 20),
        "compression": st.sampled_from(["none", "lz4", "snappy", "zstd"]),
        "inline_bytes_max": st.sampled_from([0, 300, 64 << 10]),
        "preemptive_persist_threshold_bytes": st.sampled_from([60, 400, 5 << 20]),
        "materialize_handles_max": st.sampled_from([0, 1, 3]),
        "materialize_fan_in": st.sampled_from([0, 2, 3]),
        "restore_concurrency_max": st.sampled_from([1, 16]),
        "state_memory_bytes": st.sampled_from([0, 0, OUTGROWN, NEARLY, ROOMY]),
    }
    settings |= more
    return st.builds(
        Plan,
        cuts=st.one_of(st.just(frozenset()), st.frozensets(st.integers(1, MAX_PARALLELISM - 1), max_size=HOSTS - 1)),
        coordinated=st.booleans(),
        first_host=st.sampled_from([0, 0, 0, None, 3]),
        declares=st.sampled_from([True, True, True, True, False]),
        settings=st.fixed_dictionaries(settings).map(_fitting),
    )


def _fitting(drawn: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Without a limit for columns where they do not lie in memory."""
    return tuple((drawn if drawn["table"] == "heap" else drawn | {"state_memory_bytes": 0}).items())


HEAP = plans(st.just("heap"))
BOTH_TABLES = plans(  # needs the extra rocksdb
    st.sampled_from(["heap", "rocksdb", "runs"]),
    materialize_changelog_ratio=st.sampled_from([1.0, 100.0]),  # over runs, bases soon, or layers over them
)


@dataclass(kw_only=True, eq=False)
class Kill(Fault):
    """From the nth request on nothing comes through any more; the nth itself may still take effect."""

    crash: Callable[[], None]

    def strikes(self, operation: Any, key: str) -> bool:
        assert self.nth is not None
        self.matched += 1
        if self.matched > self.nth:
            self.moment = "before"
        return self.matched >= self.nth

    async def strike(self) -> None:
        self.crash()
        raise StateBackendError("killed")


@dataclass(frozen=True)
class Checkpoint:
    """What a commit is to hold. `checkpoint_id` may be given again to another one, if this comes to nothing."""

    checkpoint_id: int
    batch: int
    contents: Contents
    reports: list[Report]
    savepoint: str | None = None

    @property
    def options(self) -> dict[str, Any]:
        """What it is committed with."""
        return {"source": sb.SourceMark("model", self.batch), "savepoint": self.savepoint}


class Machine(RuleBasedStateMachine):
    """`places` are where the copies lie; `plans` how the job may be opened."""

    places_type: Callable[[int], Places] = InMemory
    plans: st.SearchStrategy[Plan] = HEAP
    counted: ClassVar[Counter[str]] = Counter()
    """What all examples so far came to."""

    @initialize(data=st.data(), seed=st.integers(0, 2**16))
    def begin(self, data: st.DataObject, seed: int) -> None:
        self.counted["examples"] += 1
        self.patched = ExitStack()
        self.patched.enter_context(heavy_rows())
        self.places = self.places_type(seed)
        self.runner = asyncio.Runner(loop_factory=self.places.new_loop)
        self.run(self.places.begin())
        self.settings = settings_in(self.places)
        self.now = 0.0
        self.batch = 0
        self.committed = Checkpoint(-1, 0, Contents(), [{}])
        self.newest_id = -1
        self.history: list[Checkpoint] = []
        self.branch: list[Checkpoint] = []  # of those, the ones from which the committed one came about, and itself
        self.savepoints: dict[str, Checkpoint] = {}
        self.copied: set[Copied] = set()
        self.swept = False
        self.are_over_runs: list[bool] = []  # when the job was last opened with a limit
        self.crew: Crew | None = None
        self.plan: Plan = data.draw(self.plans)

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            try:
                self.leave()
                self.run(self.places.end())
            finally:
                self.runner.close()
                self.places.remove()
                self.patched.close()

    # --------------------------------------------------------------------------------------------- work on the state

    @rule(work=WORK)
    def change_the_state(self, work: Work) -> None:
        self.work(work)

    def work(self, work: Work) -> None:
        """So many operations, by chance; time passes meanwhile. Nothing where the crew declares no states."""
        crew = self.enter()
        size, seed = work
        chance = Random(seed)
        for _ in range(size if crew.declares else 0):
            match chance.randrange(20):
                case 0:
                    self.now += chance.randint(1, 4)
                case 1:
                    self.fire(chance.randrange(20))
                    self.ring()
                case 2:
                    self.clear(chance.choice(CLEARED))
                case 3 | 4:
                    self.write_operator_state(chance)
                case _:
                    self.apply(*draw_operation(chance))

    def apply(self, name: str, pairs: Pairs) -> None:
        crew = self.enter()
        if name == "merge":
            pairs = [(key, other) for key, other in pairs if crew.owner_of(key) is crew.owner_of(other)]
        note(f"  {name}: {pairs}")
        self.counted["operations"] += 1
        crew.apply(name, pairs)
        getattr(self.contents, name)(pairs, self.now)

    def clear(self, name: str) -> None:
        note(f"  clear {name}")
        self.contents.clear(name)
        for kinds in self.enter().all_kinds:
            kinds.clear(name)

    def ring(self) -> None:
        """All that is due by the job's clock, as before each checkpoint of a stream: each alarm once."""
        crew = self.enter()
        if crew.declares:
            rung = crew.ring(self.contents)
            note(f"  ring: {rung}")
            self.counted["rung"] += len(rung)

    def fire(self, until: int) -> None:
        note(f"  fire until {until}")
        fired = [kinds.fire(until) for kinds in self.enter().all_kinds]
        invariants.assert_fired(set[Any]().union(*fired), self.contents.fire(until))

    def write_operator_state(self, chance: Random) -> None:
        number, name = chance.randrange(len(self.enter().owners)), chance.choice([*OPERATOR_STATES])
        elements = [chance.randrange(1000) for _ in range(chance.randrange(4))]
        state, model = self.enter().all_kinds[number].operator[name], self.reports[number]
        note(f"  {name} of owner {number}: {elements}")
        if chance.random() < 0.7:
            state.extend(elements)
            model[name] = [*model[name], *elements]
            self.begun[number] |= {name} if elements else set()
        else:
            state.replace(elements)
            model[name] = elements
            self.begun[number].add(name)

    # ------------------------------------------------------------------------------------------------- checkpoints

    @rule(work=WORK, savepoint=SAVEPOINTS, gap=st.integers(0, 1))
    def checkpoint(self, work: Work, savepoint: str | None, gap: int) -> None:
        self.work(work)
        crew, taken = self.enter(), self.taken(gap, savepoint)
        copied = None
        with suppress(SavepointExistsError):
            copied = self.run(crew.checkpoint(taken.checkpoint_id, **taken.options))
        invariants.assert_a_name_is_given_once(savepoint, self.savepoints.keys(), is_refused=copied is None)
        if copied is None:
            self.run(crew.tell_aborted(taken.checkpoint_id))
        else:
            self.commit(taken, copied)

    @rule(
        work=WORK,
        error=st.sampled_from([StoreAccessError, StoreUnavailableError]),
        key=st.sampled_from(["*", "*segments/*", "*commits/*"]),
        nth=st.integers(1, 4),
        onwards=st.booleans(),
        moment=MOMENTS,
    )
    def checkpoint_that_the_store_refuses(
        self, *, work: Work, error: type[StoreError], key: str, nth: int, onwards: bool, moment: Moment
    ) -> None:
        """What is said of it is the truth; what is not known is found out by opening again."""
        self.work(work)
        crew, taken = self.enter(), self.taken()
        fault = Fail(key=key, nth=nth, onwards=onwards, moment=moment, error=error("made to fail by a test"))
        self.store.plan.append(fault)
        try:
            copied = self.run(crew.checkpoint(taken.checkpoint_id, **taken.options))
        except OutcomeUnknownError:
            self.leave()
            self.find_out(taken)
        except StateBackendError as refused:
            self.store.plan.clear()
            if crew.is_alone or isinstance(refused, UploadError):
                self.leave()
            else:
                self.run(crew.tell_aborted(taken.checkpoint_id))
            self.assert_newest()
        else:
            self.commit(taken, copied)
        finally:
            if self.crew is not None:
                self.store.plan.clear()

    @rule(work=WORK, turns=st.integers(0, 60))
    def checkpoint_that_is_cancelled(self, work: Work, turns: int) -> None:
        """It is committed as a whole, or its changes go with the next one."""
        self.work(work)
        crew, taken = self.enter(), self.taken()

        async def cancelled() -> None:
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:

                    async def cancel() -> None:
                        for _ in range(turns):
                            await anyio.lowlevel.checkpoint()
                        scope.cancel()

                    tasks.start_soon(cancel)
                    await crew.checkpoint(taken.checkpoint_id, **taken.options)
                    tasks.cancel_scope.cancel()

        self.run(cancelled())
        if crew.newest is not None and crew.newest.source == taken.options["source"]:
            if not crew.is_alone:
                self.run(crew.tell_complete(taken.checkpoint_id))
            self.commit(taken)
        elif not crew.is_alone:
            self.run(crew.tell_aborted(taken.checkpoint_id))

    @rule(work=WORK, nth=st.integers(1, 12), moment=MOMENTS)
    def kill_in_a_checkpoint(self, work: Work, nth: int, moment: Moment) -> None:
        """At the nth request to the primary, before or after its effect."""
        self.work(work)
        crew, taken = self.enter(), self.taken()
        self.store.plan.append(Kill(nth=nth, moment=moment, crash=self.places.crash))
        copied = None
        with suppress(StateBackendError):
            copied = self.run(crew.checkpoint(taken.checkpoint_id, **taken.options))
        self.places.crash()
        self.leave()
        if copied is None:
            self.find_out(taken)
        else:
            self.commit(taken, copied)
            self.assert_newest()

    @rule()
    def kill(self) -> None:
        self.enter()
        self.store.plan.append(Kill(nth=1, crash=self.places.crash))
        self.places.crash()
        self.leave()

    @precondition(lambda self: self.crew is not None and not self.crew.is_alone)
    @rule(which=CHOICES, killed=st.booleans())
    def replace_one_owner(self, which: int, killed: bool) -> None:
        """Another one takes his place, on what the crew stands on; the others go on with what they have."""
        crew = self.enter()
        number = which % len(crew.owners)
        self.abort_all()
        self.run(crew.replace(number, killed=killed))
        owner = crew.owners[number]
        if self.base is self.committed:
            self.judge_restore(owner)
        self.contents.take_over(self.base.contents, lambda key: crew.owner_of(key) is owner)
        self.reports[number] = self.shares_of(self.base, crew)[number]
        self.begun[number] = {*shares(self.base.reports, len(crew.owners))[number]}
        self.judge_restored()
        self.divide_unions()

    # ------------------------------------------------------------------------------ checkpoints in several steps

    @precondition(lambda self: self.crew is not None and not self.crew.is_alone)
    @rule(works=st.lists(WORK, min_size=1, max_size=3), gap=st.integers(0, 1))
    def take_snapshots(self, works: list[Work], gap: int) -> None:
        """Of one checkpoint after the other, before anybody is told what became of the first."""
        for work in works:
            self.work(work)
            crew, taken = self.enter(), self.taken(gap)
            self.pending.append((taken, self.run(crew.snapshots(taken.checkpoint_id))))

    @precondition(lambda self: self.crew is not None and not self.crew.is_alone and self.pending)
    @rule(which=CHOICES, told=st.booleans(), subsumed=st.booleans())
    def commit_snapshots(self, which: int, told: bool, subsumed: bool) -> None:
        """Of any of the checkpoints under way; those before it come to nothing by that. Nobody may be told of it."""
        assert self.crew is not None
        number = which % len(self.pending)
        taken, snapshots = self.pending[number]
        copied = self.run(self.crew.commit(taken.checkpoint_id, snapshots, **taken.options))
        rest = self.pending[number + 1 :]
        if told:
            self.run(self.crew.tell_complete(taken.checkpoint_id))
        if subsumed:
            self.run(self.crew.tell_subsumed(self.newest_id))
        self.commit(taken, copied)
        self.pending = rest

    @precondition(lambda self: self.crew is not None and self.pending)
    @rule(which=CHOICES)
    def abort_snapshots(self, which: int) -> None:
        """Of any of the checkpoints under way: its changes are in those after it."""
        assert self.crew is not None
        taken, _ = self.pending.pop(which % len(self.pending))
        self.run(self.crew.tell_aborted(taken.checkpoint_id))

    # ------------------------------------------------------------------------------------------ leave, and come back

    @rule(data=st.data())
    def leave_for_another_plan(self, data: st.DataObject) -> None:
        """Other owners, tables, codecs, hosts; what was not committed is forgotten."""
        self.leave()
        self.plan = data.draw(self.plans)
        self.enter()

    @rule()
    def pause(self) -> None:
        """Whatever goes on behind the checkpoints' back goes on."""
        self.enter()
        self.run(self.places.settle())

    @rule(work=WORK, which=CHOICES, named=st.booleans(), goes_on=st.booleans())
    def open_an_older_checkpoint(self, work: Work, which: int, named: bool, goes_on: bool) -> None:
        """What is retained comes back. Committed upon it begins a branch; left alone, it changes nothing."""
        self.leave()
        if named and self.savepoints:
            name = list(self.savepoints)[which % len(self.savepoints)]
            older, options = self.savepoints[name], {"savepoint": name}
        elif self.history:
            older = self.history[which % len(self.history)]
            options = {"checkpoint_id": older.checkpoint_id}
        else:
            return
        if "savepoint" in options:  # a coordinator goes back by the id of a checkpoint only
            self.plan = Plan(first_host=self.plan.first_host, settings=self.plan.settings)
        try:
            self.enter(older, **options)
        except CheckpointNotFoundError:
            retained = [each.checkpoint_id for each in (*self.branch[-RETAINED:], *self.savepoints.values())]
            invariants.assert_only_what_is_not_retained_is_gone(
                older.checkpoint_id, was_swept=self.swept, retained=retained
            )
            self.history.remove(older)
            return
        if goes_on:
            if older in self.branch:
                self.branch = self.branch[: self.branch.index(older) + 1]
            else:
                self.branch = [older]
            self.checkpoint(work, None, 0)
        else:
            self.leave()

    # ------------------------------------------------------------------------------------------- what goes wrong

    @rule(host=st.one_of(st.none(), st.integers(0, HOSTS - 1)))
    def lose_local_copies(self, host: int | None) -> None:
        """Of one host, or of all."""
        self.leave()
        self.copied = set()
        for each in range(HOSTS) if host is None else [host]:
            self.places.lose(each)

    @rule(which=CHOICES, damage=st.sampled_from(["flip", "cut", "lose"]), position=CHOICES)
    def damage_a_local_copy(self, which: int, damage: str, position: int) -> None:
        self.leave()
        if files := [(host, name) for host in range(HOSTS) for name in self.places.objects(host)]:
            host, name = files[which % len(files)]
            self.copied = {copied for copied in self.copied if copied[0] != host}
            self.places.damage(host, name, damage, position)

    @rule(which=CHOICES, damage=st.sampled_from(["flip", "cut"]), position=CHOICES, lost=st.booleans())
    def damage_the_primary(self, which: int, damage: str, position: int, lost: bool) -> None:
        """Whether the job comes back then or not, it is never with anything else; and what is put right comes back."""
        if lost:
            self.lose_local_copies(None)
        self.leave()
        if names := self.places.objects(None):
            name = names[which % len(names)]
            whole = self.places.read(None, name)
            self.places.damage(None, name, damage, position)
            self.plan = Plan(first_host=self.plan.first_host, settings=self.plan.settings)
            with suppress(DataError):
                self.look(host=None if lost else self.plan.first_host)
            self.places.write(None, name, whole)

    # ------------------------------------------------------------------------------------------------- maintenance

    @rule(night=st.booleans(), leaves=st.booleans())
    def sweep(self, night: bool, leaves: bool) -> None:
        """Beside the crew, or when nobody works on the job."""
        if leaves:
            self.leave()
        if not self.history:
            return
        if night:
            self.run(self.places.pass_night())
        store = self.store if self.crew is not None else self.places.primary()
        self.run(sb.sweep(self.settings, dry_run=False, min_age_s=0.0, store=store, clock=self.places.clock))
        self.swept = True

    @precondition(lambda self: self.savepoints)
    @rule(which=CHOICES)
    def drop_a_savepoint(self, which: int) -> None:
        name = list(self.savepoints)[which % len(self.savepoints)]
        store = self.store if self.crew is not None else self.places.primary()
        self.run(sb.drop_savepoint(self.settings, name, store=store))
        del self.savepoints[name]

    @rule(first=st.integers(0, MAX_PARALLELISM - 1), last=st.integers(0, MAX_PARALLELISM - 1), cached=st.booleans())
    def read_beside(self, first: int, last: int, cached: bool) -> None:
        """Somebody looks at a part of what is committed, and disturbs nobody."""
        self.look(sb.owners.KeyGroupRange(*sorted((first, last))), cached=cached)

    @rule(state=st.sampled_from(READ), which=CHOICES, named=st.booleans())
    def read_rows_beside(self, state: str, which: int, named: bool) -> None:
        """Somebody reads a state as rows, of the newest checkpoint or of a savepoint, as one commit has it."""
        name = list(self.savepoints)[which % len(self.savepoints)] if named and self.savepoints else None
        checkpoint = self.committed if name is None else self.savepoints[name]
        expected = checkpoint.contents.visible(self.now)[state]
        store = self.places.primary() if self.crew is None else self.store

        async def read() -> list[dict[str, Any]]:
            opening = sb.read_batches(self.settings, state, key_as_json=state != "rows", savepoint=name, store=store)
            async with opening as batches:
                return [row async for batch in batches for row in batch.to_pylist()]

        try:
            rows = self.run(read())
        except InputError:
            assert not expected, f"{state} cannot be read"
            return
        self.counted["reads beside"] += 1
        columns = ("n", "total", "name")
        found = [(row["key"], {c: row[c] for c in columns} if state == "rows" else row["value"]) for row in rows]
        invariants.assert_rows_are_the_commit(
            found, {shown_key(key, state): shown(value, state) for key, value in expected.items()}
        )

    @precondition(lambda self: self.history)
    @rule()
    def inspect_beside(self) -> None:
        """Somebody looks up how many keys there are; in RocksDB that is an estimate, and is not looked at."""
        store = self.places.primary() if self.crew is None else self.store
        sizes = self.run(sb.inspect(self.settings, store=store)).sizes
        if not any(row.is_estimate for row in sizes):
            found = Counter[str]()
            for row in sizes:
                found.update(dict.fromkeys(row.states, row.keys))
            invariants.assert_sizes_are_counted(found, self.committed.contents.visible(self.now), COUNTED)

    @invariant()
    def equal(self) -> None:
        """What the crew has is what the model has."""
        self.counted["steps"] += 1
        if self.crew is not None and self.crew.declares:
            invariants.assert_state_is_the_dictionary(self.crew.visible(), self.contents.visible(self.now))
            invariants.assert_operator_state([kinds.report() for kinds in self.crew.all_kinds], self.reports)

    # ------------------------------------------------------------------------------------------------------------

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """On the loop, where whoever is there lives on meanwhile."""
        return self.runner.run(coroutine)

    def enter(self, at: Checkpoint | None = None, **options: Any) -> Crew:
        """The crew, which is opened if there is none, at the newest commit or at another one."""
        if self.crew is None:
            self.base = at = at or self.committed
            self.store = FaultyStore(self.places.primary())

            async def open_crew() -> Crew:
                crew = Crew(self.places, self.settings, self.plan, self.store, lambda: self.now)
                await crew.open(**options)
                return crew

            self.crew = self.run(open_crew())
            self.counted["restores"] += len(self.crew.owners)
            self.note_memory(self.crew)
            invariants.assert_stands_on(id_of(self.crew.newest), at.checkpoint_id)
            self.contents = at.contents.copy()
            self.reports = self.shares_of(at, self.crew)
            # What each owner has begun, or was given, of operator states: of a broadcast one the others report nothing.
            self.begun: list[set[str]] = [{*share} for share in shares(at.reports, len(self.crew.owners))]
            self.pending: list[tuple[Checkpoint, list[sb.owners.SnapshotResult]]] = []
            for owner in self.crew.owners if at is self.committed else ():
                self.judge_restore(owner)
            self.judge_restored()
            self.divide_unions()
        return self.crew

    def note_memory(self, crew: Crew) -> None:
        """Count owners whose columns lie in runs by a limit of their memory, and those that are back from there."""
        found = crew.is_over_runs
        self.counted["opened over runs by a limit"] += sum(found)
        self.counted["columns came back into memory"] += found.count(False) if any(self.are_over_runs) else 0
        self.are_over_runs = found or self.are_over_runs

    def divide_unions(self) -> None:
        """Everybody got everything: each keeps his share, as users do. All of it from all would be more every time."""
        assert self.crew is not None
        for number, kinds in enumerate(self.crew.all_kinds):
            for name, mode in OPERATOR_STATES.items():
                if mode == "union":
                    self.reports[number][name] = list(self.reports[number][name])[number :: len(self.reports)]
                    kinds.operator[name].replace(self.reports[number][name])

    def leave(self) -> None:
        if self.crew is not None:
            crew, self.crew = self.crew, None
            self.counted["columns outgrew their memory"] += max(0, sum(crew.is_over_runs) - sum(self.are_over_runs))
            self.run(crew.leave())

    def look(
        self, part: sb.owners.KeyGroupRange | None = None, *, host: int | None = None, cached: bool = False
    ) -> sb.CommitSummary | None:
        """Whoever opens the job to read it sees what is committed, in the local copies of a host too."""
        store = self.places.primary() if self.crew is None else self.store
        settings, options = (self.settings, {}) if host is None else self.places.at(host, self.settings)
        owners = around(part or sb.owners.KeyGroupRange(0, MAX_PARALLELISM - 1))
        options |= {"read_only": True, "store": store, "clock": self.places.clock}
        if part is not None:
            options |= {"key_groups": part, "owners": owners}

        async def look() -> sb.CommitSummary | None:
            async with AsyncExitStack() as stack:
                if cached:
                    options["cache"] = await stack.enter_async_context(
                        sb.owners.open_download_cache(settings, store=store)
                    )
                backend = await stack.enter_async_context(sb.open_backend(settings, **options))
                if backend.newest is not None and backend.newest.checkpoint_id == self.committed.checkpoint_id:
                    self.compare(backend, part, owners)
                return backend.newest

        return self.run(look())

    def compare(
        self, backend: sb.StateBackend, part: sb.owners.KeyGroupRange | None, owners: list[sb.owners.KeyGroupRange]
    ) -> None:
        backend.advance_clock(self.now, "processing")
        kinds, expected = Kinds(backend, lambda: self.now), self.committed.contents.visible(self.now)
        for found in expected.values():
            for key in [key for key in found if key_group(key, MAX_PARALLELISM) not in backend.key_groups]:
                del found[key]
        invariants.assert_a_reader_sees_the_commit(kinds.visible(), expected)
        share = shares(self.committed.reports, len(owners))[owners.index(backend.key_groups)]
        invariants.assert_operator_state([kinds.report()], [{name: share.get(name, []) for name in OPERATOR_STATES}])

    def taken(self, gap: int = 0, savepoint: str | None = None) -> Checkpoint:
        """The checkpoint of what there is now: no alarm is left that is due."""
        self.ring()
        self.batch += 1
        newest = max([self.newest_id, *(taken.checkpoint_id for taken, _ in self.pending)])
        reports = [
            {
                name: list(found)
                for name, found in report.items()
                if name in begun or OPERATOR_STATES[name] != "broadcast"
            }
            for report, begun in zip(self.reports, self.begun, strict=True)
        ]
        return Checkpoint(newest + 1 + gap, self.batch, self.contents.copy(), reports, savepoint)

    def commit(self, taken: Checkpoint, copied: AbstractSet[Copied] = frozenset()) -> None:
        """It is in the log; said to be local for some."""
        self.copied = set(copied)
        self.counted["commits"] += 1
        self.committed = self.base = taken
        self.newest_id = taken.checkpoint_id
        self.history.append(taken)
        self.branch.append(taken)
        self.pending = []
        if taken.savepoint is not None:
            self.savepoints[taken.savepoint] = taken

    def find_out(self, taken: Checkpoint) -> None:
        """Whether it was committed, nobody knows until the job is opened again."""
        newest = self.look()
        if newest is not None and newest.source == taken.options["source"]:
            self.commit(taken)
        self.assert_newest()

    def judge_restore(self, owner: Owner) -> None:
        """What was said to be local, and is as it was, is not read from the primary."""
        drawn = dict(self.plan.settings)
        if (drawn.get("table") == "runs" or drawn.get("state_memory_bytes")) and not self.places.has_files:
            return  # a run is opened as a file, or is read from the primary
        if (report := owner.backend.restored) is not None and owner.copied in self.copied:
            self.counted["restores from local copies alone"] += 1
            invariants.assert_local_is_enough(report)

    def judge_restored(self) -> None:
        """What was restored is what was committed."""
        assert self.crew is not None
        if self.crew.declares:
            invariants.assert_restored_is_committed(self.crew.visible(), self.contents.visible(self.now))
            invariants.assert_operator_state([kinds.report() for kinds in self.crew.all_kinds], self.reports)

    def assert_newest(self) -> None:
        """The newest commit is the one of the model."""
        invariants.assert_stands_on(id_of(self.look()), self.newest_id)

    def abort_all(self) -> None:
        for taken, _ in self.pending:
            self.run(self.enter().tell_aborted(taken.checkpoint_id))
        self.pending = []

    def shares_of(self, checkpoint: Checkpoint, crew: Crew) -> list[dict[str, list[int]]]:
        """What each owner has of the operator states; of one that he declares and that is new to him, nothing."""
        found = shares(checkpoint.reports, len(crew.owners))
        if crew.declares:
            return [{name: share.get(name, []) for name in OPERATOR_STATES} for share in found]
        return found


def id_of(newest: sb.CommitSummary | None) -> int:
    """Of its checkpoint; -1 for none."""
    return -1 if newest is None else newest.checkpoint_id


def shown_key(key: sb.Key, state: str) -> sb.Key:
    """A key as it is read."""
    return key if state == "rows" else msgspec.json.encode(plain(key)).decode()


def shown(value: Any, state: str) -> Any:
    """A value as it is read: a map as its entries, in the order in which they lie."""
    if state == "maps":
        return list(value.items())
    return list(value) if isinstance(value, tuple) else value


class InMemoryMachine(Machine):
    """Crash stores, and dictionaries for tables: fast, and a seed decides what a crash leaves."""


class OnDiskMachine(Machine):
    """Files, locks and all; tables in dictionaries and in RocksDB by turns."""

    places_type = OnDisk
    plans = BOTH_TABLES


class OnTablesMachine(Machine):
    """Crash stores; tables in dictionaries and in RocksDB by turns."""

    plans = BOTH_TABLES


def around(part: sb.owners.KeyGroupRange) -> list[sb.owners.KeyGroupRange]:
    """Owners of all key groups, of which one owns that part."""
    before, after = (0, part.first - 1), (part.last + 1, MAX_PARALLELISM - 1)
    return sorted([part, *(sb.owners.KeyGroupRange(*each) for each in (before, after) if each[0] <= each[1])])
