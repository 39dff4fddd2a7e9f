"""The model of a job: what its store holds, where each of its processes stands, and what was promised to whom.

    state := contents, ghost, hours, budgets, who ran last, requests on their way, processes
    step  := a process takes its answer and makes its next request, which is carried out | whose answer is lost, before
             or after it was carried out | which arrives late; a driver dies, and another life of it begins; an hour
             passes

A process that is killed is one that makes no further step, so every state stands for a crash of all its processes too.
The ghost is what no process knows: the log as it was made, and what was acknowledged. All parts are numbers: each
content, each ghost and each place where a process stands is kept once.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from statebackend._codec.commit import Claim, Commit
from statebackend._log.names import entry_key, floor_of, marker_of, sequence_of
from statebackend.abc import ObjectInfo
from statebackend.errors import ObjectExistsError, ObjectNotFoundError, StoreUnavailableError
from statebackend.testing import invariants
from tests.explore.processes import Answer, Node, Processes, Program, Request, run_alone
from tests.explore.programs import OFFSETS, content_of, entry_of, find_end
from tests.explore.search import BrokenError

HOUR_S = 3700.0
BEGIN_S = 1_000_000.0

ACKNOWLEDGED = "no acknowledged commit is lost"
TWICE = "no batch is applied twice"
ONE = "at most one commit for each place in the log"
WHOLE_STATES = "a reader sees only committed, whole states"
SWEPT = "a sweep deletes nothing that is needed"
NO_GOING_BACK = "the hint never leads back"
INVARIANTS = (ACKNOWLEDGED, TWICE, ONE, WHOLE_STATES, SWEPT, NO_GOING_BACK)

Objects = dict[str, tuple[bytes, float]]


@dataclass(frozen=True)
class Slot:
    """One process, or one after the other in the same place. `lives`: how often it is started again at most."""

    name: str
    program: Program
    is_driver: bool = False


@dataclass(frozen=True)
class Scenario:
    """What is there at the beginning, who is at work, and how much may go wrong.

    `before`: programs that have run, one after the other, with so many hours behind each. `switches`: how often another
    process may go on than the one that made the last step, while that could go on itself; `None`: always.
    """

    name: str
    slots: Sequence[Slot]
    before: Sequence[tuple[Program, int]] = ()
    hours: int = 0
    lost: int = 0
    late: int = 0
    restarts: int = 0
    switches: int | None = None


class Ghost(NamedTuple):
    """`log`: numbers of the entries, in the order of their places. The others: see `Protocol._judge`."""

    log: tuple[int, ...] = ()
    acknowledged: frozenset[tuple[int, int]] = frozenset()
    kept: frozenset[int] = frozenset()
    looks: tuple[int, ...] = ()
    seen: tuple[int, ...] = ()
    claims: tuple[int, ...] = ()


class State(NamedTuple):
    """All of it, in numbers."""

    contents: int
    ghost: int
    hours: int
    hours_left: int
    lost_left: int
    late_left: int
    restarts_left: int
    switches_left: int
    last: int
    late: tuple[Request, ...]
    processes: tuple[tuple[int, int, int], ...]
    """Of each slot: the number of its life, of its node (-1: not begun), of the answer that it has not taken yet."""


@dataclass
class Protocol:
    """A scenario as a model. Use within `with processes`."""

    scenario: Scenario
    processes: Processes
    contents: list[Objects] = field(default_factory=list)
    ghosts: list[Ghost] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._contents_numbers: dict[frozenset[Any], int] = {}
        self._ghost_numbers: dict[Ghost, int] = {}
        self._answers: list[Answer] = [Answer()]
        self._answer_numbers: dict[Answer, int] = {}  # from 1: 0 stands for none
        self._applied: dict[tuple[int, Request, int], tuple[int, int]] = {}
        self._entries: list[Commit | Claim] = []
        self._entry_numbers: dict[bytes, int] = {}
        self._bodies: list[bytes] = []
        self._batches: dict[int, tuple[int, ...]] = {}
        self._sound: set[tuple[int, tuple[int, ...], frozenset[int]]] = set()

    # ------------------------------------------------------------------------------------------------ the beginning

    def begin(self) -> State:
        slots = len(self.scenario.slots)
        contents, ghost, hours = (
            self._contents({}),
            self._ghost(Ghost(looks=(-1,) * slots, seen=(-1,) * slots, claims=(-1,) * slots)),
            0,
        )
        for number, (program, pause) in enumerate(self.scenario.before):
            contents, ghost = self._run_before(f"e{number:x}", program, contents, ghost, hours)
            hours += pause
        scenario = self.scenario
        return State(
            contents, ghost, hours, scenario.hours, scenario.lost, scenario.late, scenario.restarts,
            -1 if scenario.switches is None else scenario.switches, -1, (), ((0, -1, 0),) * slots,
        )  # fmt: skip

    def _run_before(self, name: str, program: Program, contents: int, ghost: int, hours: int) -> tuple[int, int]:
        node = self.processes.first(name, program, self._now(hours))
        while not node.done:
            request = node.request
            assert request is not None
            ghost = self._hear(node, -1, ghost, contents)
            answer, contents, ghost = self._carry_out(request, contents, ghost, hours, step=None)
            node = self.processes.after(node, self._answers[answer], self._now(hours))
        return contents, self._hear(node, -1, ghost, contents)

    # ---------------------------------------------------------------------------------------------------- the steps

    def steps(self, state: State) -> Iterator[tuple[Hashable, State]]:
        for slot in range(len(state.processes)):
            switches = state.switches_left
            if state.last not in (-1, slot) and self._can_go_on(state, state.last):
                if switches == 0:
                    continue
                switches = max(switches - 1, -1)
            yield from self._steps_of(slot, state._replace(switches_left=switches, last=slot))
        if state.hours_left:
            yield (
                ("an hour passes",),
                state._replace(hours=state.hours + 1, hours_left=state.hours_left - 1, late=(), last=-1),
            )
        for request in state.late:
            step = ("arrives late", request)
            _, contents, ghost = self._carry_out(request, state.contents, state.ghost, state.hours, step=step)
            rest = list(state.late)
            rest.remove(request)
            yield step, state._replace(contents=contents, ghost=ghost, late=tuple(rest))

    def _can_go_on(self, state: State, slot: int) -> bool:
        _, node, answer = state.processes[slot]
        return answer != 0 and not self.processes.nodes[node].done

    def _steps_of(self, slot: int, state: State) -> Iterator[tuple[Hashable, State]]:
        life, at, answer = state.processes[slot]
        if at >= 0 and state.restarts_left and self.scenario.slots[slot].is_driver:
            yield (
                (slot, "is started again"),
                self._moved(state._replace(restarts_left=state.restarts_left - 1), slot, (life + 1, -1, 0)),
            )
        now_s = self._now(state.hours)
        if at < 0:
            chosen = self.scenario.slots[slot]
            node = self.processes.first(f"{slot + 1:x}{life:x}", chosen.program, now_s)
        elif answer == 0:
            return  # it has ended
        else:
            node = self.processes.after(self.processes.nodes[at], self._answers[answer], now_s)
        ghost = self._hear(node, slot, state.ghost, state.contents)
        if node.done:
            yield (slot, "ends", node.told), self._moved(state._replace(ghost=ghost), slot, (life, node.number, 0))
            return
        yield from self._requests(slot, life, node, state._replace(ghost=ghost))

    def _requests(self, slot: int, life: int, node: Node, state: State) -> Iterator[tuple[Hashable, State]]:
        request = node.request
        assert request is not None
        answer, contents, ghost = self._carry_out(
            request, state.contents, state.ghost, state.hours, step=(slot, request)
        )
        done = state._replace(contents=contents, ghost=ghost)
        yield (slot, request, node.told), self._moved(done, slot, (life, node.number, answer))
        if not request.changes:
            return
        lost = self._answer(Answer(error=StoreUnavailableError))
        if state.lost_left and (contents, ghost) != (state.contents, state.ghost):
            less = state._replace(lost_left=state.lost_left - 1)
            yield (
                (slot, request, "answer lost"),
                self._moved(less._replace(contents=contents, ghost=ghost), slot, (life, node.number, lost)),
            )
            yield (slot, request, "lost"), self._moved(less, slot, (life, node.number, lost))
        if state.late_left:
            later = state._replace(late_left=state.late_left - 1, late=(*state.late, request))
            yield (slot, request, "no answer, arrives later"), self._moved(later, slot, (life, node.number, lost))

    def _moved(self, state: State, slot: int, to: tuple[int, int, int]) -> State:
        return state._replace(processes=(*state.processes[:slot], to, *state.processes[slot + 1 :]))

    # ---------------------------------------------------------------------------------------------------- the store

    def _carry_out(
        self, request: Request, contents: int, ghost: int, hours: int, *, step: Hashable
    ) -> tuple[int, int, int]:
        """The answer, the contents and the ghost after it. Raises `BrokenError`."""
        if request == OFFSETS:
            acknowledged = self.ghosts[ghost].acknowledged
            return self._answer(Answer(max((batch for batch, _ in acknowledged), default=-1) + 1)), contents, ghost
        key = (contents, request, hours)
        if (found := self._applied.get(key)) is None:
            answer, objects = apply(self.contents[contents], request, self._now(hours))
            after = contents if objects is None else self._contents(objects)
            found = self._applied[key] = (self._answer(answer), after)
        answer, after = found
        if request.operation == "put_if_absent" and after != contents:
            ghost = self._append(request, after, ghost, step)
        if after != contents:
            self._check_sound(after, ghost, step)
        return answer, after, ghost

    def _append(self, request: Request, contents: int, ghost: int, step: Hashable) -> int:
        sequence, found = sequence_of(request.key), self.ghosts[ghost]
        if sequence is None or sequence < len(found.log):
            return ghost  # where an entry had been swept: a stray, which nobody may take for one of the log
        entry = self._entry(request.key, request.body)
        log = [self._entries[each] for each in found.log]
        try:
            invariants.assert_entry_follows(self._entries[entry], log)
        except AssertionError as error:
            raise BrokenError(
                NO_GOING_BACK if isinstance(self._entries[entry], Claim) else ONE, str(error), step
            ) from error
        made = self._entries[entry]
        if isinstance(made, Commit):
            self._batches[entry] = self._batches_of(made, self.contents[contents], step)
        return self._judge_lost(found._replace(log=(*found.log, entry)), step)

    def _batches_of(self, commit: Commit, objects: Objects, step: Hashable) -> tuple[int, ...]:
        gone = [key for key in content_of(commit) if key not in objects]
        if gone:
            raise BrokenError(SWEPT, f"commit {commit.sequence} points to {gone}, which are gone", step)
        batches = tuple(int(each) for key in content_of(commit) for each in objects[key][0].split())
        if len(set(batches)) != len(batches):
            raise BrokenError(TWICE, f"commit {commit.sequence} holds batches {batches}", step)
        return batches

    def _check_sound(self, contents: int, ghost: int, step: Hashable) -> None:
        """What can be opened is whole, the newest is there, and a search finds the end."""
        found = self.ghosts[ghost]
        key = (contents, found.log, found.kept)
        if key in self._sound or not found.log:
            return
        self._sound.add(key)
        objects = self.contents[contents]
        floor = max((floor_of(each) or 0 for each in objects), default=0)
        marks = [mark for mark in map(marker_of, objects) if mark is not None]
        newest = self._newest(found)
        for sequence, number in enumerate(found.log):
            entry = self._entries[number]
            is_there = objects.get(entry_key(sequence), (b"",))[0] == self._bodies[number]
            must = sequence in (newest, len(found.log) - 1) or sequence in found.kept
            if must and not is_there:
                raise BrokenError(SWEPT, f"entry {sequence} is gone", step)
            if (
                isinstance(entry, Commit)
                and is_there
                and (must or sequence >= floor or any(mark.names(entry) for mark in marks))
            ):
                gone = [each for each in content_of(entry) if each not in objects]
                if gone:
                    raise BrokenError(SWEPT, f"commit {sequence} has lost {gone}", step)
        alone = run_alone(
            find_end(), lambda request: apply(objects, request, 0.0)[0], now_s=BEGIN_S, loop=self.processes
        )
        if alone.told != [("end", len(found.log) - 1, None)]:
            raise BrokenError(NO_GOING_BACK, f"the log has {len(found.log)} entries, a search says {alone.told}", step)

    # --------------------------------------------------------------------------------------------------- the ghost

    def _hear(self, node: Node, slot: int, ghost: int, contents: int) -> int:
        """The ghost after what a process has said. Raises `BrokenError`."""
        for event in node.told:
            ghost = self._judge(event, slot, ghost, contents, (slot, node.request, node.told))
        return ghost

    def _judge(self, event: Any, slot: int, number: int, contents: int, step: Hashable) -> int:
        ghost, newest = self.ghosts[number], self._newest(self.ghosts[number])
        what, said = event[0], event[1]
        if what in ("committed", "opened") and (
            said >= len(ghost.log) or self._entries[ghost.log[said]].stamp != event[2]
        ):
            invariant = ONE if what == "committed" else NO_GOING_BACK
            raise BrokenError(
                invariant, f"a driver has {what} at {said}, and that is not entry {said} of the log", step
            )
        if what == "committed":
            pass
        elif what == "acknowledged":
            return self._judge_lost(ghost._replace(acknowledged=ghost.acknowledged | {(said, event[2])}), step)
        elif what == "opened" and slot >= 0:
            return self._ghost(ghost._replace(claims=_put(ghost.claims, slot, said)))
        elif what == "kept":
            ghost = ghost._replace(kept=ghost.kept | {said})
            number = self._ghost(ghost)
            self._check_sound(contents, number, step)
        elif what == "looks":
            return self._ghost(ghost._replace(looks=_put(ghost.looks, slot, newest)))
        elif what == "saw":
            if not max(ghost.looks[slot], ghost.seen[slot]) <= said <= newest:
                raise BrokenError(
                    NO_GOING_BACK, f"a reader saw {said}; the newest went from {ghost.looks[slot]} to {newest}", step
                )
            return self._ghost(ghost._replace(looks=_put(ghost.looks, slot, -1), seen=_put(ghost.seen, slot, said)))
        else:
            self._judge_reading(event, slot, ghost, contents, step)
        return number

    def _judge_reading(self, event: Any, slot: int, ghost: Ghost, contents: int, step: Hashable) -> None:
        what, said = event[0], event[1]
        if what == "read":
            batches = tuple(int(each) for each in event[2].split())
            expected = self._batches.get(ghost.log[said]) if said < len(ghost.log) else None
            if batches != expected:
                raise BrokenError(WHOLE_STATES, f"commit {said} read as {batches}, and is {expected}", step)
        elif what == "new":
            chain = [each for each in self._chain(ghost) if each > said]
            passed = [each for each in chain if each <= max(event[2], default=-1)]
            if list(event[2]) != passed[::-1]:
                raise BrokenError(WHOLE_STATES, f"after {said} came {passed[::-1]}, a feed saw {event[2]}", step)
        elif what == "missed" and said is not None:
            raise BrokenError(SWEPT, f"a reader misses an object of commit {said}, and nobody says it was swept", step)
        elif what == "late" and self._newest(ghost) == ghost.looks[slot]:
            raise BrokenError(SWEPT, "a reader does not find the newest commit", step)
        elif what == "missed" and slot >= 0 and ghost.claims[slot] >= 0:
            later = [each for each in ghost.log[ghost.claims[slot] + 1 :] if isinstance(self._entries[each], Claim)]
            if not later:
                raise BrokenError(
                    SWEPT, "a driver misses what it has opened, and nobody has claimed the job since", step
                )

    def _judge_lost(self, ghost: Ghost, step: Hashable) -> int:
        """Every acknowledged batch is in the newest state, but for what an opening of an older one has taken back."""
        chain = self._chain(ghost)
        held = self._batches[ghost.log[chain[0]]] if chain else ()
        back = max(
            (place for place, each in enumerate(ghost.log) if getattr(self._entries[each], "base", None) is not None),
            default=-1,
        )
        for batch, sequence in ghost.acknowledged:
            if sequence in chain and batch not in held:
                raise BrokenError(ACKNOWLEDGED, f"batch {batch} is not in commit {chain[0]}: {held}", step)
            if sequence not in chain and sequence > back:
                raise BrokenError(ACKNOWLEDGED, f"batch {batch} was committed at {sequence}: {chain}", step)
        return self._ghost(ghost)

    def _newest(self, ghost: Ghost) -> int:
        return max(
            (place for place, each in enumerate(ghost.log) if isinstance(self._entries[each], Commit)), default=-1
        )

    def _chain(self, ghost: Ghost) -> list[int]:
        """The newest commit, its parent, and so on to the first."""
        chain: list[int] = []
        at: int | None = self._newest(ghost)
        while at is not None and at >= 0:
            chain.append(at)
            entry = self._entries[ghost.log[at]]
            assert isinstance(entry, Commit)
            at = entry.parent
        return chain

    # -------------------------------------------------------------------------------------------------- in numbers

    def _now(self, hours: int) -> float:
        return BEGIN_S + hours * HOUR_S

    def _contents(self, objects: Objects) -> int:
        key = frozenset(objects.items())
        if (number := self._contents_numbers.get(key)) is None:
            number = self._contents_numbers[key] = len(self.contents)
            self.contents.append(objects)
        return number

    def _ghost(self, ghost: Ghost) -> int:
        if (number := self._ghost_numbers.get(ghost)) is None:
            number = self._ghost_numbers[ghost] = len(self.ghosts)
            self.ghosts.append(ghost)
        return number

    def _answer(self, answer: Answer) -> int:
        if (number := self._answer_numbers.get(answer)) is None:
            number = self._answer_numbers[answer] = len(self._answers)
            self._answers.append(answer)
        return number

    def _entry(self, key: str, body: bytes) -> int:
        if (number := self._entry_numbers.get(body)) is None:
            number = self._entry_numbers[body] = len(self._entries)
            self._entries.append(entry_of(key, body))  # type: ignore[arg-type]
            self._bodies.append(body)
        return number

    def told(self, step: Any) -> str:
        if step[0] == "an hour passes":
            return step[0]
        if isinstance(step[0], str):
            return f"{step[0]}: {step[1].operation} {step[1].key}"
        name = "before" if step[0] < 0 else self.scenario.slots[step[0]].name
        rest = [f"{each.operation} {each.key}" if isinstance(each, Request) else str(each) for each in step[1:] if each]
        return f"{name}: {'  '.join(rest)}"


def apply(objects: Objects, request: Request, now_s: float) -> tuple[Answer, Objects | None]:
    """The answer of a store that keeps its contract, and what it holds then; `None`: what it held before."""
    operation, key, body = request
    if operation == "get":
        return (Answer(objects[key][0]) if key in objects else Answer(error=ObjectNotFoundError)), None
    if operation == "head":
        return Answer(_info(key, objects[key]) if key in objects else None), None
    if operation == "list":
        return Answer(tuple(_info(each, objects[each]) for each in sorted(objects) if each.startswith(key))), None
    if operation == "put_if_absent" and key in objects:
        return Answer(error=ObjectExistsError), None
    if operation == "delete":
        return Answer(), {each: held for each, held in objects.items() if each != key}
    return Answer(), {**objects, key: (body, now_s)}


def _info(key: str, held: tuple[bytes, float]) -> ObjectInfo:
    return ObjectInfo(key=key, size_bytes=len(held[0]), modified_s=held[1])


def _put(values: tuple[int, ...], place: int, value: int) -> tuple[int, ...]:
    return (*values[:place], value, *values[place + 1 :])
