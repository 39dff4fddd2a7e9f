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

from statebackend.errors import StoreUnavailableError
from tests.explore.contents import Objects, apply
from tests.explore.judging import Ghost, Judge
from tests.explore.processes import Answer, Node, Processes, Program, Request
from tests.explore.programs import OFFSETS

HOUR_S = 3700.0
BEGIN_S = 1_000_000.0


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
        ghost = self.judge.hear(node, slot, state.ghost, state.contents, self.contents[state.contents])
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
