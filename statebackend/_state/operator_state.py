"""State that belongs to an owner of key groups and to no key: offsets of a source, a model, a list of rules.

    mode        a report is                     other number of owners                    the same number
    split       a part of the whole             all parts, dealt out in contiguous runs   everybody his own
    union       a part of the whole             everybody gets everything                 everybody gets everything
    broadcast   a copy of the whole             owner i gets copy i mod copies            everybody his own

It is small, so every commit holds all of it, beside the ranges whose owners reported it. Who takes over is decided by
`redistribute`, purely. The modes' names are on disk, as the kinds `operator split`, ...: never change one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar, cast, get_args, overload

from statebackend._state.bulk_arguments import as_list
from statebackend._state.values import Values
from statebackend.errors import InputError
from statebackend.ids import KeyGroupRange, OperatorElements, RangeState, StateDescriptor
from statebackend.settings import MiB

V = TypeVar("V")

Mode = Literal["split", "union", "broadcast"]
Elements = tuple[bytes, ...]
Report = Mapping[int, Elements]
"""What one owner reported, by state id. A state that it did not declare is not in it; one that is empty is."""

OPERATOR_KINDS: Final[Mapping[Mode, str]] = {mode: f"operator {mode}" for mode in get_args(Mode)}
OPERATOR_BYTES_MAX: Final = 4 * MiB
"""Of one state and owner: all of it is in every commit."""


class OperatorState(Sequence[V]):
    """A list of elements that survives this process: append, extend, replace, clear, iterate.

    Elements are copied in and out. Raises `ValueEncodeError` for an element of another type and `InputError` beyond
    `OPERATOR_BYTES_MAX`; the state is then as before.
    """

    __slots__ = ("_cells", "_size_bytes", "_values", "name")

    def __init__(self, name: str, cells: Iterable[bytes]) -> None:
        self.name: Final = name
        self._cells = list(cells)
        self._size_bytes = sum(map(len, self._cells))

    def declare(self, values: Values[V]) -> None:
        """What a declaration says: the first one, and each later one of the same type."""
        self._values = values

    def append(self, element: V) -> None:
        """Append one element."""
        self._add([self._values.encode(element)])

    def extend(self, elements: Iterable[V]) -> None:
        """Append all of them, or none."""
        self._add(self._values.encode_many(as_list(elements)))

    def replace(self, elements: Iterable[V]) -> None:
        """Hold these elements and no others."""
        cells = self._values.encode_many(as_list(elements))
        self._size_bytes = self._admitted(sum(map(len, cells)))
        self._cells = cells

    def clear(self) -> None:
        """Remove every element. The state is still there, and reported as empty."""
        self._cells, self._size_bytes = [], 0

    def report(self) -> Elements:
        """What it holds now, encoded. Later changes are not in it."""
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
        if size_bytes > OPERATOR_BYTES_MAX:
            raise InputError(
                "operator state is in every commit: keep what is large under a key",
                state=self.name,
                size_bytes=size_bytes,
                bytes_max=OPERATOR_BYTES_MAX,
            )
        return size_bytes


class OperatorStates:
    """The operator states of one owner: its share of what was reported, and the declared ones."""

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
        ordered = sorted(reported, key=lambda part: part.key_groups)
        reports = [{found.state_id: found.elements for found in part.operator} for part in ordered]
        self._share: dict[int, Elements] | None = None if modes and owners is None else {}
        self._knows_owners = owners is not None
        if owners is not None:
            if mine not in owners:
                raise InputError("this owner is one of the owners", mine=str(mine), owners=list(map(str, owners)))
            self._share = dict(redistribute(reports, modes, len(owners))[sorted(owners).index(mine)])
        self._declared: dict[str, tuple[int, OperatorState[Any]]] = {}

    def check_owners(self) -> None:
        """Raise `InputError` where nobody said who the other owners are: each would take the same share."""
        if not self._knows_owners:
            raise InputError("operator state of a part of the key groups: say which `owners` there are")

    def state(self, name: str, state_id: int) -> OperatorState[Any]:
        """The state of that name, with this owner's share when it is first asked for."""
        assert self._share is not None
        if name not in self._declared:
            self._declared[name] = state_id, OperatorState(name, self._share.get(state_id, ()))
        return self._declared[name][1]

    def report(self) -> tuple[OperatorElements, ...]:
        """What this owner holds of each state, those included that it has a share of and did not declare."""
        if self._share is None:
            self.check_owners()
        found = (self._share or {}) | {state_id: state.report() for state_id, state in self._declared.values()}
        return tuple(OperatorElements(state_id, elements) for state_id, elements in sorted(found.items()))


def redistribute(reports: Sequence[Report], modes: Mapping[int, Mode], owners: int) -> Sequence[Report]:
    """What each of `owners` gets of what the former owners reported, both in the order of their key groups.

    With split states the loads of the new owners differ by one element at most, over all states together: the next
    state's surplus begins at the owner at which that of the state before ended. A broadcast state that only some
    reported is handed to everybody, in turn (FLINK-23475, FLINK-38131). Raises `InputError` without owners.
    """
    if owners < 1:
        raise InputError("somebody has to take the state over", owners=owners)
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


def mode_of(kind: str) -> Mode | None:
    """The mode of an operator state's kind, `None` for a keyed state's."""
    return next((mode for mode, found in OPERATOR_KINDS.items() if found == kind), None)


def _deal(elements: Elements, owners: int, first: int) -> tuple[Sequence[Elements], int]:
    """Contiguous runs, beginning at owner `first`, and the owner at which the longer ones end."""
    share, surplus = divmod(len(elements), owners)
    dealt: list[Elements] = [()] * owners
    start = 0
    for turn in range(owners):
        end = start + share + (turn < surplus)
        dealt[(first + turn) % owners] = elements[start:end]
        start = end
    return dealt, (first + surplus) % owners


def as_mode(mode: object) -> Mode:
    """`mode`, if it is one. Raises `InputError`."""
    if mode not in get_args(Mode):
        raise InputError("operator state has one of these modes", mode=repr(mode), modes=get_args(Mode))
    return cast("Mode", mode)
