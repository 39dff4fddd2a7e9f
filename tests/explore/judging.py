"""Judges what has come of a step, by what no process knows: the log as it was made, and what was acknowledged."""

from collections.abc import Hashable
from typing import Any, NamedTuple

from statebackend._codec.commit import Claim, Commit
from statebackend._log.names import entry_key, floor_of, marker_of, sequence_of
from tests import invariants
from tests.explore.contents import Objects, apply
from tests.explore.processes import Node, Processes, Request, run_alone
from tests.explore.programs import content_of, entry_of, find_end
from tests.explore.search import BrokenError

ACKNOWLEDGED = "no acknowledged commit is lost"
TWICE = "no batch is applied twice"
ONE = "at most one commit for each place in the log"
WHOLE_STATES = "a reader sees only committed, whole states"
SWEPT = "a sweep deletes nothing that is needed"
NO_GOING_BACK = "the hint never leads back"
INVARIANTS = (ACKNOWLEDGED, TWICE, ONE, WHOLE_STATES, SWEPT, NO_GOING_BACK)


class Ghost(NamedTuple):
    """`log`: numbers of the entries, in the order of their places. The others: see `Protocol._judge`."""

    log: tuple[int, ...] = ()
    acknowledged: frozenset[tuple[int, int]] = frozenset()
    kept: frozenset[int] = frozenset()
    looks: tuple[int, ...] = ()
    seen: tuple[int, ...] = ()
    claims: tuple[int, ...] = ()


class Judge:
    """Of one scenario. Ghosts and entries are kept once each, and known by their numbers."""

    def __init__(self, processes: Processes) -> None:
        self.ghosts: list[Ghost] = []
        self._processes = processes
        self._ghost_numbers: dict[Ghost, int] = {}
        self._entries: list[Commit | Claim] = []
        self._entry_numbers: dict[bytes, int] = {}
        self.bodies: list[bytes] = []
        """Of the entries, by their numbers."""
        self._batches: dict[int, tuple[int, ...]] = {}
        self._sound: set[tuple[int, tuple[int, ...], frozenset[int]]] = set()

    def append(self, request: Request, objects: Objects, ghost: int, step: Hashable) -> int:
        """The ghost after an entry was made, and the store holds `objects`. Raises `BrokenError`."""
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
            self._batches[entry] = self._batches_of(made, objects, step)
        return self._judge_lost(found._replace(log=(*found.log, entry)), step)

    def _batches_of(self, commit: Commit, objects: Objects, step: Hashable) -> tuple[int, ...]:
        gone = [key for key in content_of(commit) if key not in objects]
        if gone:
            raise BrokenError(SWEPT, f"commit {commit.sequence} points to {gone}, which are gone", step)
        batches = tuple(int(each) for key in content_of(commit) for each in objects[key][0].split())
        if len(set(batches)) != len(batches):
            raise BrokenError(TWICE, f"commit {commit.sequence} holds batches {batches}", step)
        return batches

    def check_sound(self, contents: int, objects: Objects, ghost: int, step: Hashable) -> None:
        """What can be opened is whole, the newest is there, and a search finds the end."""
        found = self.ghosts[ghost]
        key = (contents, found.log, found.kept)
        if key in self._sound or not found.log:
            return
        self._sound.add(key)
        floor = max((floor_of(each) or 0 for each in objects), default=0)
        marks = [mark for mark in map(marker_of, objects) if mark is not None]
        newest = self._newest(found)
        for sequence, number in enumerate(found.log):
            entry = self._entries[number]
            is_there = objects.get(entry_key(sequence), (b"",))[0] == self.bodies[number]
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
        alone = run_alone(find_end(), lambda request: apply(objects, request, 0.0)[0], now_s=0.0, loop=self._processes)
        if alone.told != [("end", len(found.log) - 1, None)]:
            raise BrokenError(NO_GOING_BACK, f"the log has {len(found.log)} entries, a search says {alone.told}", step)

    def hear(self, node: Node, slot: int, ghost: int, contents: int, objects: Objects) -> int:
        """The ghost after what a process has said. Raises `BrokenError`."""
        for event in node.told:
            ghost = self._judge(event, slot, ghost, (slot, node.request, node.told))
            if event[0] == "kept":
                self.check_sound(contents, objects, ghost, (slot, node.request, node.told))
        return ghost

    def _judge(self, event: Any, slot: int, number: int, step: Hashable) -> int:
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
            return self.number(ghost._replace(claims=_put(ghost.claims, slot, said)))
        elif what == "kept":
            return self.number(ghost._replace(kept=ghost.kept | {said}))
        elif what == "looks":
            return self.number(ghost._replace(looks=_put(ghost.looks, slot, newest)))
        elif what == "saw":
            if not max(ghost.looks[slot], ghost.seen[slot]) <= said <= newest:
                raise BrokenError(
                    NO_GOING_BACK, f"a reader saw {said}; the newest went from {ghost.looks[slot]} to {newest}", step
                )
            return self.number(ghost._replace(looks=_put(ghost.looks, slot, -1), seen=_put(ghost.seen, slot, said)))
        else:
            self._judge_reading(event, slot, ghost, step)
        return number

    def _judge_reading(self, event: Any, slot: int, ghost: Ghost, step: Hashable) -> None:
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
        return self.number(ghost)

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

    def forget(self, ghost: int, slot: int) -> int:
        """The ghost without what only matters to a process that goes on."""
        found = self.ghosts[ghost]
        looks, seen, claims = (_put(each, slot, -1) for each in (found.looks, found.seen, found.claims))
        return self.number(found._replace(looks=looks, seen=seen, claims=claims))

    def number(self, ghost: Ghost) -> int:
        """The number of that ghost."""
        if (number := self._ghost_numbers.get(ghost)) is None:
            number = self._ghost_numbers[ghost] = len(self.ghosts)
            self.ghosts.append(ghost)
        return number

    def _entry(self, key: str, body: bytes) -> int:
        if (number := self._entry_numbers.get(body)) is None:
            number = self._entry_numbers[body] = len(self._entries)
            self._entries.append(entry_of(key, body))  # type: ignore[arg-type]
            self.bodies.append(body)
        return number


def _put(values: tuple[int, ...], place: int, value: int) -> tuple[int, ...]:
    return (*values[:place], value, *values[place + 1 :])
