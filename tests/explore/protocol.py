"""The model of a job: what its store holds, where each of its processes stands, and what was promised to whom.

    state := contents, ghost, hours, budgets, who ran last, requests on their way, processes
    step  := a process takes its answer and makes its next request, which is carried out | whose answer is lost, before
             or after it was carried out | which arrives late; a driver dies, and another life of it begins; an hour
             passes

A process that is killed is one that makes no further step, so every state stands for a crash of all its processes too.
The ghost is what no process knows: the log as it was made, and what was acknowledged. All parts are numbers: each
content, each ghost and each place where a process stands is kept once.

Two things keep the states few, and lose none that matters:

- A request *commutes* with all that others can still do, if it reads an object that nobody can change any more, or
  makes a new one that nobody can see before its maker names it. It is carried out in one step with the one before,
  unless its process has said anything or looked at the clock in between. Requests of others between the two have the
  same outcome as behind both, with at most as many switches.
- A process that has ended is no longer told by how it came there.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from statebackend._log.names import COMMITS
from statebackend.errors import StoreUnavailableError
from tests.explore.contents import Objects, apply
from tests.explore.judging import Ghost, Judge
from tests.explore.processes import Answer, Node, Processes, Program, Request
from tests.explore.programs import OFFSETS

ENDED = 0
"""In the place of the node of a process that has ended: it takes no answer there."""
SEGMENTS = "segments/"
PLAIN = frozenset({"stopped", "swept", "told"})
"""What a process may say without consequences."""
HOUR_S = 3700.0
BEGIN_S = 1_000_000.0


@dataclass(frozen=True)
class Slot:
    """One process, or one after the other in the same place. `lives`: how often it is started again at most."""

    name: str
    program: Program
    is_driver: bool = False
    deletes: bool = False
    """It lists everything, and deletes some of it."""


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
    reduced: bool = True
    """False: no request is carried out in one step with another."""

    def __post_init__(self) -> None:
        self.judge = Judge(self.processes)
        self._contents_numbers: dict[frozenset[Any], int] = {}
        self._answers: list[Answer] = [Answer()]
        self._answer_numbers: dict[Answer, int] = {}  # from 1: 0 stands for none
        self._applied: dict[tuple[int, Request, int], tuple[int, int]] = {}

    # ------------------------------------------------------------------------------------------------ the beginning

    def begin(self) -> State:
        slots = len(self.scenario.slots)
        contents, ghost, hours = (
            self._contents({}),
            self.judge.number(Ghost(looks=(-1,) * slots, seen=(-1,) * slots, claims=(-1,) * slots)),
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
            ghost = self.judge.hear(node, -1, ghost, contents, self.contents[contents])
            answer, contents, ghost = self._carry_out(request, contents, ghost, hours, step=None)
            node = self.processes.after(node, self._answers[answer], self._now(hours))
        return contents, self.judge.hear(node, -1, ghost, contents, self.contents[contents])

    # ---------------------------------------------------------------------------------------------------- the steps

    def steps(self, state: State) -> Iterator[tuple[Hashable, State]]:
        for slot in range(len(state.processes)):
            switches = state.switches_left
            if state.last not in (-1, slot):
                if switches == 0:
                    continue
                switches = max(switches - 1, -1)
            for step, reached in self._steps_of(slot, state._replace(switches_left=switches)):
                is_free = self.scenario.switches is None or not self._can_go_on(reached, slot)
                yield step, reached._replace(last=-1 if is_free else slot)
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

    def rest(self, state: State) -> tuple[Hashable, int]:
        return state._replace(switches_left=0, last=-1), -state.switches_left

    def _can_go_on(self, state: State, slot: int) -> bool:
        return state.processes[slot][2] != 0

    def _steps_of(self, slot: int, state: State) -> Iterator[tuple[tuple[Any, ...], State]]:
        life, at, answer = state.processes[slot]
        if at >= 0 and state.restarts_left and self.scenario.slots[slot].is_driver:
            yield (
                (slot, "is started again"),
                self._moved(state._replace(restarts_left=state.restarts_left - 1), slot, (life + 1, -1, 0)),
            )
        if at < 0:
            chosen = self.scenario.slots[slot]
            node = self.processes.first(f"{slot + 1:x}{life:x}", chosen.program, self._now(state.hours))
        elif answer == 0:
            return  # it has ended
        else:
            node = self._next(state, slot)
        yield from self._goes_on(slot, node, state)

    def _next(self, state: State, slot: int) -> Node:
        """Where the process stands when it has taken its answer."""
        _, at, answer = state.processes[slot]
        return self.processes.after(self.processes.nodes[at], self._answers[answer], self._now(state.hours))

    def _goes_on(self, slot: int, node: Node, state: State) -> Iterator[tuple[tuple[Any, ...], State]]:
        life = state.processes[slot][0]
        ghost = self.judge.hear(node, slot, state.ghost, state.contents, self.contents[state.contents])
        heard = state._replace(ghost=ghost)
        if node.done:
            if not (self.scenario.slots[slot].is_driver and state.restarts_left):
                heard = heard._replace(ghost=self.judge.forget(ghost, slot))
            yield (slot, "ends", node.told), self._moved(heard, slot, (life, ENDED, 0))
            return
        for step, reached in self._requests(slot, life, node, heard):
            if self.reduced and self._commutes(following := self._next(reached, slot), reached):
                yield from ((step + more[1:], later) for more, later in self._goes_on(slot, following, reached))
            else:
                yield step, reached

    def _commutes(self, node: Node, state: State) -> bool:
        """What the process does next makes no difference to others, nor they to it, whenever it does it."""
        if node.looked_at_clock and state.hours_left:
            return False
        if node.done:
            return all(event[0] in PLAIN for event in node.told)
        if node.told or self._can_delete(state):
            return False
        request, objects = node.request, self.contents[state.contents]
        assert request is not None
        if request.operation in ("get", "head"):
            return request.key.startswith((COMMITS, SEGMENTS)) and request.key in objects
        return request.operation == "put" and request.key.startswith(SEGMENTS) and request.key not in objects

    def _can_delete(self, state: State) -> bool:
        """Somebody may still list everything and delete some of it."""
        slots = zip(self.scenario.slots, state.processes, strict=True)
        return any(slot.deletes and (at, answer) != (ENDED, 0) for slot, (_, at, answer) in slots) or any(
            request.operation == "delete" for request in state.late
        )

    def _requests(self, slot: int, life: int, node: Node, state: State) -> Iterator[tuple[tuple[Any, ...], State]]:
        request = node.request
        assert request is not None
        assert self.scenario.slots[slot].deletes or not _touches_all(request), f"{request} of one that does not sweep"
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
            acknowledged = self.judge.ghosts[ghost].acknowledged
            return self._answer(Answer(max((batch for batch, _ in acknowledged), default=-1) + 1)), contents, ghost
        key = (contents, request, hours)
        if (found := self._applied.get(key)) is None:
            answer, objects = apply(self.contents[contents], request, self._now(hours))
            after = contents if objects is None else self._contents(objects)
            found = self._applied[key] = (self._answer(answer), after)
        answer, after = found
        if request.operation == "put_if_absent" and after != contents:
            ghost = self.judge.append(request, self.contents[after], ghost, step)
        if after != contents:
            self.judge.check_sound(after, self.contents[after], ghost, step)
        return answer, after, ghost

    # -------------------------------------------------------------------------------------------------- in numbers

    def _now(self, hours: int) -> float:
        return BEGIN_S + hours * HOUR_S

    def _contents(self, objects: Objects) -> int:
        key = frozenset(objects.items())
        if (number := self._contents_numbers.get(key)) is None:
            number = self._contents_numbers[key] = len(self.contents)
            self.contents.append(objects)
        return number

    def _answer(self, answer: Answer) -> int:
        if (number := self._answer_numbers.get(answer)) is None:
            number = self._answer_numbers[answer] = len(self._answers)
            self._answers.append(answer)
        return number

    def told(self, step: Any) -> str:
        if step[0] == "an hour passes":
            return step[0]
        if isinstance(step[0], str):
            return f"{step[0]}: {step[1].operation} {step[1].key}"
        name = "before" if step[0] < 0 else self.scenario.slots[step[0]].name
        rest = [f"{each.operation} {each.key}" if isinstance(each, Request) else str(each) for each in step[1:] if each]
        return f"{name}: {'  '.join(rest)}"


def _touches_all(request: Request) -> bool:
    """It deletes what others may need, or sees what has no name yet."""
    if request.operation == "list":
        return SEGMENTS.startswith(request.key)
    return request.operation == "delete" and request.key.startswith((COMMITS, SEGMENTS))
