"""Every kind of state against plain Python: random writes, drains, restores, bases and clocks, always equal."""

import itertools
import operator
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from statebackend import TimeToLive
from statebackend._codec.change_sets.changes import Changes
from statebackend._codec.change_sets.state_change import StateChange
from statebackend._state.declared import KeyedStates
from statebackend._tables.snapshot import StatesSnapshot
from statebackend.ids import KeyGroupRange
from tests.aggregates import Spread
from tests.changes import rows_of
from tests.codec.samples import KEYS
from tests.state.states import MAX_PARALLELISM, all_states, restored

ALL = frozenset(range(MAX_PARALLELISM))
NUMBERS = st.integers(-3, 3)
ENTRY_KEYS = st.text(max_size=1)
TTL_S = 5.0


class Written(NamedTuple):
    """A value of a state with a time-to-live, and when it was written."""

    value: int
    at: float


class Model:
    """The contents that the states should have."""

    def __init__(self) -> None:
        self.lists: dict[Any, list[int]] = defaultdict(list)
        self.maps: dict[Any, dict[str, int]] = defaultdict(dict)
        self.totals: dict[Any, int] = {}
        self.added: dict[Any, list[int]] = defaultdict(list)
        self.timers: set[tuple[float, Any]] = set()
        self.recent: dict[Any, Written] = {}
        self.recent_lists: dict[Any, list[Written]] = defaultdict(list)
        self.recent_maps: dict[Any, dict[str, Written]] = defaultdict(dict)

    def visible(self, now: float) -> dict[str, Any]:
        """All that can be read at `now`."""

        def lives(written: Written) -> bool:
            return now < written.at + TTL_S

        lists = {key: [each.value for each in found if lives(each)] for key, found in self.recent_lists.items()}
        maps = {
            key: {name: each.value for name, each in found.items() if lives(each)}
            for key, found in self.recent_maps.items()
        }
        return {
            "lists": {key: list(found) for key, found in self.lists.items() if found},
            "maps": {key: dict(found) for key, found in self.maps.items() if found},
            "totals": dict(self.totals),
            "spreads": {key: max(found) - min(found) for key, found in self.added.items() if found},
            "timers": set(self.timers),
            "recent": {key: each.value for key, each in self.recent.items() if lives(each)},
            "recent_lists": {key: found for key, found in lists.items() if found},
            "recent_maps": {key: found for key, found in maps.items() if found},
        }


class Kinds:
    """Every kind, declared on the states of one backend."""

    def __init__(self, states: KeyedStates, ttl: TimeToLive) -> None:
        self.lists = states.list_state("lists", int)
        self.maps = states.map_state("maps", str, int)
        self.totals = states.reducing_state("totals", int, operator.add)
        self.spreads = states.aggregating_state("spreads", Spread())
        self.timers = states.timers("timers")
        self.recent = states.value_state("recent", int, ttl=ttl)
        self.recent_lists = states.list_state("recent lists", int, ttl=ttl)
        self.recent_maps = states.map_state("recent maps", str, int, ttl=ttl)

    def visible(self) -> dict[str, Any]:
        """All that can be read, by every way to read it."""
        for state in (self.lists, self.maps, self.totals, self.spreads, self.recent, self.recent_lists):
            assert len(state) == len(list(state)) == len(state.get_many(list(state)))
            assert all(key in state for key in state)
        for lists in (self.lists, self.recent_lists):
            assert all(len(found) == len(list(found)) for found in lists.values())
        return {
            "lists": {key: list(found) for key, found in self.lists.items()},
            "maps": {key: dict(found) for key, found in self.maps.items()},
            "totals": dict(self.totals),
            "spreads": dict(self.spreads),
            "timers": {(at, key) for key in self.timers for at in self.timers.registered(key)},
            "recent": dict(self.recent),
            "recent_lists": dict(zip(self.recent_lists, self.recent_lists.get_many(self.recent_lists), strict=True)),
            "recent_maps": {key: dict(found) for key, found in self.recent_maps.items()},
        }


class EveryKindAgainstPlainPython(RuleBasedStateMachine):
    """The drained changes are a log; the log replayed, or a base and the log after it, gives the same contents."""

    keys = Bundle("keys")

    @initialize()
    def open(self) -> None:
        self.now = 0.0
        self.ttl = TimeToLive(TTL_S, lambda: self.now)
        self.model = Model()
        self.log: list[StateChange] = []
        self.declare(all_states())

    def declare(self, states: KeyedStates) -> None:
        self.states = states
        self.drained: Iterator[Changes] = iter(())  # begun and not ended
        self.kinds = Kinds(states, self.ttl)

    @rule(target=keys, key=KEYS)
    def key(self, key: Any) -> Any:
        return key

    # ------------------------------------------------------------------------------------------------------- writes

    @rule(key=keys, number=NUMBERS)
    def append(self, key: Any, number: int) -> None:
        self.kinds.lists[key].append(number)
        self.model.lists[key].append(number)

    @rule(key=keys, numbers=st.lists(NUMBERS, max_size=3))
    def extend(self, key: Any, numbers: list[int]) -> None:
        self.kinds.lists[key].extend(numbers)
        self.model.lists[key].extend(numbers)

    @rule(key=keys, numbers=st.lists(NUMBERS, max_size=3))
    def replace_list(self, key: Any, numbers: list[int]) -> None:
        self.kinds.lists[key] = numbers
        self.model.lists[key] = list(numbers)

    @rule(key=keys)
    def clear_list(self, key: Any) -> None:
        self.kinds.lists[key].clear()
        self.model.lists.pop(key, None)

    @rule(key=keys, entry_key=ENTRY_KEYS, number=NUMBERS)
    def put(self, key: Any, entry_key: str, number: int) -> None:
        self.kinds.maps[key][entry_key] = number
        self.model.maps[key][entry_key] = number

    @rule(key=keys, entry_key=ENTRY_KEYS)
    def pop_entry(self, key: Any, entry_key: str) -> None:
        assert self.kinds.maps[key].pop(entry_key, None) == self.model.maps[key].pop(entry_key, None)

    @rule(key=keys, entries=st.dictionaries(ENTRY_KEYS, NUMBERS, max_size=3), bulk=st.booleans())
    def update_map(self, key: Any, entries: dict[str, int], bulk: bool) -> None:
        if bulk:
            self.kinds.maps.update_many([key], [entries])
        else:
            self.kinds.maps[key].update(entries)
        self.model.maps[key].update(entries)

    @rule(key=keys, entries=st.dictionaries(ENTRY_KEYS, NUMBERS, max_size=3))
    def replace_map(self, key: Any, entries: dict[str, int]) -> None:
        self.kinds.maps[key] = entries
        self.model.maps[key] = dict(entries)

    @rule(key=keys)
    def delete_map(self, key: Any) -> None:
        if self.model.maps.pop(key, None):
            del self.kinds.maps[key]

    @rule(added=st.lists(st.tuples(keys, NUMBERS), max_size=3), bulk=st.booleans())
    def add(self, added: list[tuple[Any, int]], bulk: bool) -> None:
        for key, number in added:
            self.model.totals[key] = self.model.totals.get(key, 0) + number
            self.model.added[key].append(number)
        for state in (self.kinds.totals, self.kinds.spreads):
            if bulk:
                state.add_many([key for key, _ in added], [number for _, number in added])
            else:
                for key, number in added:
                    state.add(key, number)

    @rule(key=keys, others=st.lists(keys, max_size=2))
    def merge(self, key: Any, others: list[Any]) -> None:
        self.kinds.spreads.merge(key, others)
        for other in others:
            if other != key:
                self.model.added[key] += self.model.added.pop(other, [])

    @rule(key=keys)
    def forget(self, key: Any) -> None:
        for state, there in ((self.kinds.totals, self.model.totals), (self.kinds.spreads, self.model.added)):
            if there.pop(key, []) != []:
                del state[key]

    @rule(key=keys, at=st.integers(0, 20))
    def register(self, key: Any, at: int) -> None:
        self.kinds.timers.register(key, at)
        self.model.timers.add((float(at), key))

    @rule(key=keys, at=st.integers(0, 20))
    def delete_timer(self, key: Any, at: int) -> None:
        self.kinds.timers.delete(key, at)
        self.model.timers.discard((float(at), key))

    @rule(now=st.integers(0, 20))
    def fire(self, now: int) -> None:
        fired = list(self.kinds.timers.due(now))
        assert [at for at, _ in fired] == sorted(at for at, _ in fired)
        assert set(fired) == {timer for timer in self.model.timers if timer[0] <= now}
        assert len(set(fired)) == len(fired)
        self.model.timers -= set(fired)

    @rule(key=keys, number=NUMBERS, entry_key=ENTRY_KEYS)
    def write_recent(self, key: Any, number: int, entry_key: str) -> None:
        self.kinds.recent[key] = number
        self.kinds.recent_lists[key].append(number)
        self.kinds.recent_maps[key][entry_key] = number
        written = Written(number, self.now)
        self.model.recent[key] = written
        self.model.recent_lists[key].append(written)
        self.model.recent_maps[key][entry_key] = written

    @rule(seconds=st.integers(1, 4))
    def later(self, seconds: int) -> None:
        self.now += seconds

    # --------------------------------------------------------------------------------- drains, restores, and bases

    @rule()
    def drain(self) -> None:
        self.log += rows_of(itertools.chain(self.drained, self.states.drain()))
        self.drained = iter(())

    @rule(changes=st.integers(0, 3))
    def drain_a_part(self, changes: int) -> None:
        """As a checkpoint that is cancelled: the rest comes later, before what is written meanwhile."""
        self.drained = itertools.chain(self.drained, self.states.drain())
        self.log += rows_of(itertools.islice(self.drained, changes))

    @rule()
    def restore(self) -> None:
        """All that was not drained is gone with the process; this one drains first."""
        self.drain()
        self.declare(restored(self.states, self.log))

    @rule(split=st.integers(0, 126))
    def restore_in_two_parts(self, split: int) -> None:
        """Two owners of a part each have together what one owner has."""
        self.drain()
        ranges = KeyGroupRange(0, split), KeyGroupRange(split + 1, 127)
        parts = [Kinds(restored(self.states, self.log, part), self.ttl).visible() for part in ranges]
        assert {name: part | parts[1][name] for name, part in parts[0].items()} == self.model.visible(self.now)

    @rule()
    def materialize(self) -> None:
        """A base takes the place of the log. Read late, it is still of the moment it was taken."""
        self.drain()
        base: StatesSnapshot = self.states.snapshot()
        expected = self.model.visible(self.now)
        for key in list(self.kinds.lists):
            self.kinds.lists[key].append(7)
            self.model.lists[key].append(7)
        for key in list(self.kinds.maps):
            self.kinds.maps[key]["later"] = 7
            self.model.maps[key]["later"] = 7
        self.kinds.totals.add("later", 7)
        self.model.totals["later"] = self.model.totals.get("later", 0) + 7
        self.log = rows_of(base.changes(ALL))
        assert Kinds(restored(self.states, self.log), self.ttl).visible() == expected

    @invariant()
    def equal(self) -> None:
        if hasattr(self, "model"):
            assert self.kinds.visible() == self.model.visible(self.now)


TestEveryKindAgainstPlainPython = EveryKindAgainstPlainPython.TestCase
TestEveryKindAgainstPlainPython.settings = settings(deadline=None, max_examples=60, stateful_step_count=30)
