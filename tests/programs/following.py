"""A follower beside the job: after each step it is at the newest commit, with what the dictionaries have; and heirs.

Beside      the follower of a program, on a thread of its own, as a service has it
heir        a follower takes the job over by hand, while the driver is alive
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import statebackend as sb
from statebackend._tables.key_groups import key_group
from statebackend.errors import BackendClosedError, FencedError, InputError
from statebackend.ids import KeyGroupRange
from statebackend.objectstore import LocalStore
from tests.programs.beside import Made, edits, newest_id
from tests.programs.dictionaries import Dictionaries
from tests.programs.looking import check, refused
from tests.programs.operations import declare
from tests.programs.processors import look
from tests.programs.program import Declared, Follow, Heir
from tests.programs.surroundings import attend
from tests.programs.values import KEYS, text_of
from tests.programs.weather import FOLLOWED, PrimaryInWeather, Sky, through_weather

if TYPE_CHECKING:
    from tests.programs.running import Running

PATIENCE_S = 120.0
"""For a follower that is not there yet: the machine may be busy."""


TROUBLES = 6
"""So many requests of a follower fail before it clears up until the next look: after each it waits longer, really."""


class Beside:
    """Follows the job of a program as the step says, opened when there is something to look at."""

    def __init__(self, running: "Running", step: Follow) -> None:
        self._running = running
        self._step = step
        self._fleet: Any = None
        self._last: int | None = None  # of its key groups
        self._states: dict[Declared, Any] = {}
        self._sky = Sky()

    def look(self) -> None:
        """Wait for the newest commit, and compare all keyed states. The answers must be of that commit."""
        running = self._running
        if self._last is not None and self._last >= running.held.groups:  # the job has no such key groups any more
            self.close()
        if self._fleet is None:
            self._fleet = self._open()
        self._sky.left = TROUBLES
        newest = running.line[-1]
        position = self._fleet.wait_for(checkpoint_id=newest.checkpoint_id, timeout_s=PATIENCE_S)
        check("followed checkpoint", position.checkpoint_id, newest.checkpoint_id)
        if not newest.is_edit:
            check("followed batch", position.batch_id, newest.newest_batch)
        held, readers = running.held, running.readers()
        states = readers.known(held, readers.keyed)
        for declared, found in zip(states, self._fleet.ask(lambda fleet: self._read(fleet, states)), strict=True):
            check(f"{declared.name} as followed", found, self._expected(held, declared))

    def close(self) -> None:
        """Follow no more; the next look opens it anew."""
        fleet, self._fleet = self._fleet, None
        self._states.clear()
        if fleet is not None:
            fleet.close()

    def _open(self) -> Any:
        running, step = self._running, self._step
        root = running.home / "primary"
        sky = self._sky = Sky()
        store = PrimaryInWeather(root, sky=sky) if step.weather else LocalStore(root)
        self._last = step.part % (running.held.groups - 1) if step.part else None
        groups = None if self._last is None else KeyGroupRange(0, self._last)
        fleet = sb.follow_in_background(
            running.settings, every_s=step.every_s, pin=step.pin, key_groups=groups, store=store
        )
        sky.weather = FOLLOWED.get(step.weather)  # it can only be opened in a fine one
        return fleet

    def _read(self, fleet: Any, states: list[Declared]) -> list[dict[str, str]]:
        """What the follower has, on its thread. A state that was declared before is asked again, as a service does."""
        found = []
        for each in states:
            if each not in self._states:
                self._states[each] = declare(fleet, each, self._running.job, self._running.program.keys)
            state = self._states[each]
            keys = filter(self._is_in_part, KEYS[self._running.program.keys]) if each.kind == "timers" else list(state)
            values = {key: look(state, each, key) for key in keys}
            found.append(
                {text_of(key): text_of(value) for key, value in values.items() if not self._is_none(each, value)}
            )
        return found

    def _is_none(self, declared: Declared, value: Any) -> bool:
        return declared.kind == "timers" and not value

    def _expected(self, held: Dictionaries, declared: Declared) -> Mapping[str, str]:
        rows = held.rows(declared).items()
        return {text_of(key): text_of(held.shown(declared, found)) for key, found in rows if self._is_in_part(key)}

    def _is_in_part(self, key: sb.Key) -> bool:
        return self._last is None or key_group(key, self._running.held.groups) <= self._last


def follow(running: "Running", step: Follow) -> None:
    """Begin to follow, in place of who followed before."""
    running.follow(Beside(running, step))


def heir(running: "Running", step: Heir) -> None:
    """Promote a follower, and commit by hand. In bad weather the commit may have been made, or not."""
    made: list[Made] = []
    if (work := edits(running, step, made.append)) is None:
        return

    async def take_over() -> None:
        async with sb.follow(running.settings, every_s=0.01) as follower:
            for each in running.readers().known(running.held, running.job.states):
                if each.kind not in ("split", "broadcast", "union"):
                    with refused(InputError):
                        declare(follower, each, running.job, running.program.keys)[KEYS[running.program.keys][0]] = 1
            backend = await follower.promote()
            if step.twice:
                assert await follower.promote() is backend, "another backend"
                with refused(BackendClosedError):
                    follower.value_state("any", int)
            await work(backend)

    was_open, before = running.sink._job is not None, running.line[-1].checkpoint_id
    is_through = through_weather(running, step, lambda: attend(take_over()), again=False)
    newest = newest_id(running.settings) if not is_through else made[-1].checkpoint_id
    for each in made:
        if each.checkpoint_id <= newest:
            running.committed(each.checkpoint_id, each.held, None, at_s=each.at_s)
    if is_through and was_open:
        with refused(FencedError):
            running.sink(running.frame(step.batch, running.batch_id), running.batch_id)
    assert newest >= before
    running.next_run()
