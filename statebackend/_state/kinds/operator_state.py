"""State that belongs to an owner of key groups and to no key: offsets of a source, a model, a list of rules.

    mode        a report is             new number of owners                      same number of owners
    split       a part of the whole     all parts, dealt out in contiguous runs   each owner gets its own back
    union       a part of the whole     each owner gets everything                each owner gets everything
    broadcast   a copy of the whole     owner i gets copy i mod copies            each owner gets its own back

What an owner was given of a union state and did not declare, as one that was not at work, is the whole, and not its
part: it is marked, and counts once. Otherwise each new run would multiply it by the number of such owners.

It is small, so every commit contains all of it, in the ranges of the owners that reported it. `redistribute` decides
which owner takes over what. The names of the modes are stored, as the kinds `operator split`, ...: never change one.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Literal, TypeVar, cast, get_args, overload

import msgspec

from statebackend._state.bulk_arguments import as_list
from statebackend._state.forgotten import refuse_change
from statebackend._state.values import Values
from statebackend.errors import InputError
from statebackend.ids import KeyGroupRange, OperatorElements, RangeState, StateDescriptor
from statebackend.settings import MiB

V = TypeVar("V")

Mode = Literal["split", "union", "broadcast"]
Elements = tuple[bytes, ...]
Report = Mapping[int, Elements]
"""The elements that one owner reported, by state id. Includes empty states, but none that it did not declare."""

OPERATOR_KINDS: Final[Mapping[Mode, str]] = {mode: f"operator {mode}" for mode in get_args(Mode)}
OPERATOR_BYTES_MAX: Final = 4 * MiB
"""Limit for one state of one owner, because every commit contains all of it."""


class OperatorState(Sequence[V]):
    """A list of elements that survives this process: append, extend, replace, clear, iterate.

        offsets = backend.operator_state("offsets", Offset)
        offsets.replace([Offset("topic", 0, 4711)])

    Elements are copied in and out. Raises `ValueEncodeError` for an element of another type, and `InputError` if the
    state would exceed 4 MiB; the state is then as before.
    """

    __slots__ = ("_cells", "_size_bytes", "_values", "is_closed", "is_replaced", "name")

    def __init__(self, name: str, cells: Iterable[bytes]) -> None:
        self.name: Final = name
        self.is_closed = False
        """True once its backend is closed: then it refuses to be changed."""
        self.is_replaced = False
        """True once it was said what all its elements are, which may be none."""
        self._cells = list(cells)
        self._size_bytes = sum(map(len, self._cells))

    def declare(self, values: Values[V]) -> None:
        """Apply a declaration: the first, or a later one of the same type."""
        self._values = values

    def append(self, element: V) -> None:
        """Append one element."""
        self._add([self._values.encode(element)])

    def extend(self, elements: Iterable[V]) -> None:
        """Append all of them, or none."""
        self._add(self._values.encode_many(as_list(elements)))

    def replace(self, elements: Iterable[V]) -> None:
        """Replace all elements by these. All of them, or the state is as before."""
        cells = self._values.encode_many(as_list(elements))
        self._size_bytes = self._admitted(sum(map(len, cells)))
        self._cells, self.is_replaced = cells, True

    def clear(self) -> None:
        """Remove every element. The state remains, and is reported as empty."""
        self._size_bytes = self._admitted(0)
        self._cells, self.is_replaced = [], True

    def copies(self, elements: Iterable[V]) -> list[V]:
        """The elements as they will be read once they are appended. Changes nothing."""
        return self._values.decode_many(self._values.encode_many(as_list(elements)))

    def report(self) -> Elements:
        """The elements as they are now, encoded."""
        return tuple(self._cells)

    def __len__(self) -> int:
        return len(self._cells)

    def __iter__(self) -> Iterator[V]:
        return iter(self._values.decode_many(self._cells))

    @overload
    def __getitem__(self, index: int) -> V: ...
    @overload
    def __getitem__(self, index: slice) -> list[V]: ...
    def __getitem__(self, index: int | slice) -> V | list[V]:
        if isinstance(index, slice):
            return self._values.decode_many(self._cells[index])
        return self._values.decode(self._cells[index])

    def _add(self, cells: list[bytes]) -> None:
        self._size_bytes = self._admitted(self._size_bytes + sum(map(len, cells)))
        self._cells += cells

    def _admitted(self, size_bytes: int) -> int:
        if self.is_closed:
            refuse_change(self.name)
        if size_bytes > OPERATOR_BYTES_MAX:
            raise InputError(
                "operator state is too large, and every commit contains it: put large state under a key",
                state=self.name,
                size_bytes=size_bytes,
                bytes_max=OPERATOR_BYTES_MAX,
            )
        return size_bytes


class OperatorStates:
    """The operator states of one owner: its share of what was reported, and those it has declared."""

    def __init__(
        self,
        mine: KeyGroupRange,
        known: Iterable[StateDescriptor],
        reported: Sequence[RangeState],
        owners: Sequence[KeyGroupRange] | None,
    ) -> None:
        modes: dict[int, Mode] = {}
        for found in known:
            if (mode := mode_of(found.kind)) is not None:
                modes[found.state_id] = mode
        reports = _reports_of(reported)
        unions = {state_id for state_id, mode in modes.items() if mode == "union"}
        own = {each.state_id for part in reported for each in part.operator if each.is_untaken}
        self._untaken: Final = own if owners is None or len(owners) == 1 else unions
        self._share: dict[int, Elements] | None = None if modes and owners is None else {}
        self._knows_owners = owners is not None
        if owners is not None:
            if mine not in owners:
                raise InputError("this owner must be one of the owners", mine=str(mine), owners=list(map(str, owners)))
            self._share = dict(redistribute(reports, modes, len(owners))[sorted(owners).index(mine)])
        self._declared: dict[str, tuple[int, OperatorState[Any]]] = {}
        self._broadcast = set[int]()
        self._reported: Report = self._share or {}

    def changed(self) -> list[str]:
        """The names of the states with other elements than were last reported."""
        declared = self._declared.items()
        return [name for name, (number, state) in declared if state.report() != self._reported.get(number, ())]

    def retire(self) -> None:
        """As `KeyedState.retire`."""
        for _, state in self._declared.values():
            state.is_closed = True

    def resume(self) -> None:
        """As `KeyedState.resume`."""
        for _, state in self._declared.values():
            state.is_closed = False

    def check_owners(self) -> None:
        """Raise `InputError` where the other owners are not known: each owner would take the same share."""
        if not self._knows_owners:
            raise InputError("operator state of a part of the key groups needs all `owners`: pass them")

    def state(self, name: str, state_id: int, mode: Mode) -> OperatorState[Any]:
        """The state of this name, filled with this owner's share at the first call."""
        assert self._share is not None
        if name not in self._declared:
            if mode == "broadcast":
                self._broadcast.add(state_id)
            self._declared[name] = state_id, OperatorState(name, self._share.get(state_id, ()))
        return self._declared[name][1]

    def report(self) -> tuple[OperatorElements, ...]:
        """This owner's elements of each state, including states it has a share of but did not declare.

        Nothing of a broadcast state that is only declared here: other owners may have begun it in the same batch, and
        an empty copy would be kept beside theirs.
        """
        if self._share is None:
            self.check_owners()
        taken = {state_id: state.report() for state_id, state in self._declared.values()}
        found = (self._share or {}) | taken
        replaced = {state_id for state_id, state in self._declared.values() if state.is_replaced}
        begun = self._reported.keys() | replaced | (found.keys() - self._broadcast)
        self._reported = {each: elements for each, elements in found.items() if elements or each in begun}
        return elements_of(self._reported, untaken=self._untaken - taken.keys())


def redistribute(reports: Sequence[Report], modes: Mapping[int, Mode], owners: int) -> Sequence[Report]:
    """The elements for each of `owners` new owners, from the reports of the former owners; both by key groups.

    Over all split states together, the new owners' numbers of elements differ by one at most: the surplus of a state
    starts at the owner where that of the state before ended. A broadcast state that only some owners reported is given
    to all of them, copy by copy in turn (FLINK-23475, FLINK-38131). Raises `InputError` without owners.
    """
    if owners < 1:
        raise InputError("there must be at least one new owner", owners=owners)
    new: list[dict[int, Elements]] = [{} for _ in range(owners)]
    first = 0
    for state_id, mode in sorted(modes.items()):
        reported = [report[state_id] for report in reports if state_id in report]
        if not reported:
            continue
        if mode == "broadcast" and not (len(reported) == len(reports) == owners):
            dealt: Sequence[Elements | None] = [reported[owner % len(reported)] for owner in range(owners)]
        elif mode == "union":
            dealt = [sum(reported, ())] * owners
        elif len(reports) == owners:
            dealt = [report.get(state_id) for report in reports]
        else:
            dealt, first = _deal(sum(reported, ()), owners, first)
        for mine, elements in zip(new, dealt, strict=True):
            if elements is not None:
                mine[state_id] = elements
    return new


def gathered(together: Sequence[Sequence[RangeState]], modes: Mapping[int, Mode]) -> Sequence[Report]:
    """The elements that owners of all these ranges would have: of a broadcast state, those of the first copy."""
    reports = iter(_reports_of(part for parts in together for part in parts))
    return [redistribute(list(islice(reports, len(parts))), modes, 1)[0] for parts in together]


def lack_copies(ranges: Sequence[RangeState], known: Iterable[StateDescriptor]) -> bool:
    """True if some of the ranges have reported a broadcast state that others have not."""
    reports, broadcast = _reports_of(ranges), _broadcast(known)
    return any(0 < sum(state_id in report for report in reports) < len(reports) for state_id in broadcast)


def with_copies(mine: RangeState, ranges: Sequence[RangeState], known: Iterable[StateDescriptor]) -> RangeState:
    """`mine`, one of the ranges, with a copy of each broadcast state that only others have reported."""
    place = sorted(part.key_groups for part in ranges).index(mine.key_groups)
    copies = redistribute(_reports_of(ranges), _broadcast(known), len(ranges))[place]
    found = {each.state_id: each for each in (*elements_of(copies), *mine.operator)}
    return msgspec.structs.replace(mine, operator=tuple(found[state_id] for state_id in sorted(found)))


def elements_of(report: Report, *, untaken: Container[int] = ()) -> tuple[OperatorElements, ...]:
    """The report as a commit has it. `untaken`: the union states that the owner did not declare."""
    return tuple(
        OperatorElements(state_id, elements, state_id in untaken) for state_id, elements in sorted(report.items())
    )


def _reports_of(ranges: Iterable[RangeState]) -> Sequence[Report]:
    """The report of each range, in their order. The first has what several were given and did not take."""
    seen = set[int]()
    reports: list[Report] = []
    for part in sorted(ranges, key=lambda part: part.key_groups):
        counted = [each for each in part.operator if not (each.is_untaken and each.state_id in seen)]
        reports.append({each.state_id: each.elements for each in counted})
        seen |= {each.state_id for each in counted if each.is_untaken}
    return reports


def _broadcast(known: Iterable[StateDescriptor]) -> Mapping[int, Mode]:
    return {found.state_id: "broadcast" for found in known if mode_of(found.kind) == "broadcast"}


def mode_of(kind: str) -> Mode | None:
    """The mode of an operator state, by its kind; `None` for the kind of a keyed state."""
    return next((mode for mode, found in OPERATOR_KINDS.items() if found == kind), None)


def _deal(elements: Elements, owners: int, first: int) -> tuple[Sequence[Elements], int]:
    """Contiguous runs of elements by owner, dealt out from owner `first`, and the owner where the longer runs end."""
    share, surplus = divmod(len(elements), owners)
    dealt: list[Elements] = [()] * owners
    start = 0
    for turn in range(owners):
        end = start + share + (turn < surplus)
        dealt[(first + turn) % owners] = elements[start:end]
        start = end
    return dealt, (first + surplus) % owners


def as_mode(mode: object) -> Mode:
    """Return `mode` if it is one. Raises `InputError`."""
    if mode not in get_args(Mode):
        raise InputError("the mode of operator state must be one of these", mode=repr(mode), modes=get_args(Mode))
    return cast("Mode", mode)
