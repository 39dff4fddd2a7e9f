"""State that belongs to no key: who takes it over, by the original's rules, and that it comes back."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend._state.declared import KeyedStates
from statebackend._state.kinds.operator_state import (
    OPERATOR_BYTES_MAX,
    OPERATOR_KINDS,
    Elements,
    Mode,
    Report,
    redistribute,
)
from statebackend.errors import InputError, StateTypeError, ValueEncodeError
from statebackend.ids import KeyGroupRange, OperatorElements, RangeState, all_key_groups
from tests.state.states import MAX_PARALLELISM, all_states

ALL = all_key_groups(MAX_PARALLELISM)
REPORTS = st.lists(
    st.dictionaries(st.integers(0, 3), st.lists(st.binary(min_size=1, max_size=3), max_size=7).map(tuple), max_size=4),
    min_size=1,
    max_size=5,
)
MODES: st.SearchStrategy[dict[int, Mode]] = st.fixed_dictionaries(
    {state_id: st.sampled_from(["split", "union", "broadcast"]) for state_id in range(4)}
)


def elements(text: str) -> Elements:
    """One per letter."""
    return tuple(letter.encode() for letter in text)


def shown(new: Any, state_id: int = 0) -> list[str | None]:
    """The elements that each new owner has of a state, `None` for an owner that does not have it."""
    return [b"".join(report[state_id]).decode() if state_id in report else None for report in new]


def dealt(mode: Mode, reports: list[str | None], owners: int) -> list[str | None]:
    """A redistribution of one state, with a letter for each element."""
    old: list[Report] = [{} if found is None else {0: elements(found)} for found in reports]
    return shown(redistribute(old, {0: mode}, owners))


# ------------------------------------------------------------------------------------------------- who takes over


@pytest.mark.parametrize(
    ("reports", "owners", "expected"),
    [
        (["abc", "de", "fgh"], 2, ["abcd", "efgh"]),
        (["abc", "de", "fgh"], 5, ["ab", "cd", "ef", "g", "h"]),
        (["abcdefg"], 3, ["abc", "de", "fg"]),
        (["a", "b"], 1, ["ab"]),
        (["a"], 3, ["a", "", ""]),
        (["", ""], 3, ["", "", ""]),
        (["ab", None, "c"], 2, ["ab", "c"]),
        (["abcd", "e"], 2, ["abcd", "e"]),
        (["ab", None], 2, ["ab", None]),
        ([None, None], 3, [None, None, None]),
    ],
)
def test_split_deals_out_contiguous_runs(reports: list[Any], owners: int, expected: list[Any]) -> None:
    """In the old order; the first ones get one more. With the same number of owners nobody's are touched."""
    assert dealt("split", reports, owners) == expected


def test_surplus_of_the_next_state_begins_where_the_last_ended() -> None:
    """Otherwise the first owner had one more of every state."""
    old: list[Report] = [{0: elements("abcd"), 1: elements("efgh"), 2: elements("ij"), 3: elements("klm")}]
    new = redistribute(old, dict.fromkeys(range(4), "split"), 3)
    assert shown(new, 0) == ["ab", "c", "d"]
    assert shown(new, 1) == ["h", "ef", "g"]
    assert shown(new, 2) == ["j", "", "i"]
    assert shown(new, 3) == ["m", "k", "l"]


@pytest.mark.parametrize(
    ("reports", "owners", "expected"),
    [
        (["ab", "c"], 3, ["abc", "abc", "abc"]),
        (["ab", "c"], 2, ["abc", "abc"]),
        (["ab", None], 2, ["ab", "ab"]),
        (["", ""], 1, [""]),
    ],
)
def test_union_gives_everybody_everything(reports: list[Any], owners: int, expected: list[Any]) -> None:
    """With the same number of owners too."""
    assert dealt("union", reports, owners) == expected


@pytest.mark.parametrize(
    ("reports", "owners", "expected"),
    [
        (["a", "b"], 5, ["a", "b", "a", "b", "a"]),
        (["a", "b", "c"], 2, ["a", "b"]),
        (["a", "b", "c"], 3, ["a", "b", "c"]),
        (["a", None, "c"], 3, ["a", "c", "a"]),
        ([None, "b"], 2, ["b", "b"]),
        ([None, "", None], 3, ["", "", ""]),
    ],
)
def test_broadcast_gives_everybody_a_copy(reports: list[Any], owners: int, expected: list[Any]) -> None:
    """Owner i copy i mod copies. Where only some reported it, nobody is without (FLINK-23475, FLINK-38131)."""
    assert dealt("broadcast", reports, owners) == expected


def test_nobody_to_take_over_is_refused() -> None:
    """It would be lost."""
    for owners in (0, -1):
        with pytest.raises(InputError):
            redistribute([{0: elements("a")}], {0: "split"}, owners)


@settings(deadline=None)
@given(REPORTS, MODES, st.integers(1, 7))
def test_nothing_is_lost_nor_doubled(reports: list[Report], modes: dict[int, Mode], owners: int) -> None:
    """Split: every element once, in order of the runs, fairly. Union and broadcast: all, and a copy, for everybody."""
    new = redistribute(reports, modes, owners)
    assert len(new) == owners
    for state_id, mode in modes.items():
        old = [report[state_id] for report in reports if state_id in report]
        got = [report[state_id] for report in new if state_id in report]
        if mode == "split":
            assert sorted(sum(got, ())) == sorted(sum(old, ()))
        elif old:
            assert len(got) == owners
            assert set(got) <= ({sum(old, ())} if mode == "union" else set(old))
    if len(reports) != owners:
        loads = [
            sum(len(report.get(state_id, ())) for state_id in modes if modes[state_id] == "split") for report in new
        ]
        assert max(loads) - min(loads) <= 1


def test_names_of_the_modes_are_fixed() -> None:
    """Row: OperatorStreamStateHandleTest.testFixedEnumOrder. They are on disk: words and no numbers, and exactly three.

    Each in a byte would be the original's; here a commit says which it is, so their order means nothing.
    """
    assert OPERATOR_KINDS == {
        "split": "operator split",
        "union": "operator union",
        "broadcast": "operator broadcast",
    }


# ---------------------------------------------------------------------------------------------------- it is a state


def reopened(
    old: list[KeyedStates], key_groups: KeyGroupRange = ALL, owners: list[KeyGroupRange] | None = None
) -> KeyedStates:
    """The states of one new owner, from what the old ones reported, as it comes back from a commit."""
    parts = [RangeState(each.key_groups, (), operator=each.operator_report()) for each in old]
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(parts), type=list[RangeState])
    return KeyedStates(key_groups, MAX_PARALLELISM, old[0].descriptors, reported=stored, owners=owners)


def test_it_is_a_list() -> None:
    """Elements are copied in and out."""
    offsets = all_states().operator_state("offsets", list[int])
    given_element = [1]
    offsets.append(given_element)
    offsets.extend([[2], [3]])
    for element in [given_element, *offsets, offsets[0], *offsets[:]]:
        element.append(9)
    assert (list(offsets), len(offsets), offsets[-1], offsets[1:]) == ([[1], [2], [3]], 3, [3], [[2], [3]])
    offsets.replace([[4]])
    assert list(offsets) == [[4]]
    offsets.clear()
    assert list(offsets) == []


def test_it_comes_back_and_an_undeclared_one_is_kept() -> None:
    """Also through a run in which nobody asked for it."""
    states = all_states()
    states.operator_state("offsets", int).extend([1, 2])
    states.operator_state("rules", str, "broadcast").append("x")
    states.value_state("keyed", int)["a"] = 1
    between = reopened([states])
    between.operator_state("rules", str, "broadcast").append("y")
    later = reopened([between])
    assert list(later.operator_state("offsets", int)) == [1, 2]
    assert list(later.operator_state("rules", str, "broadcast")) == ["x", "y"]
    assert later.sizes == {"keyed": 0}


def test_report_is_of_its_moment() -> None:
    """Later changes are not in it. A cleared state is reported as empty, an undeclared one not at all."""
    states = all_states()
    assert states.operator_report() == ()
    offsets = states.operator_state("offsets", int)
    offsets.append(1)
    report = states.operator_report()
    offsets.append(2)
    assert report == (OperatorElements(0, (b"\x01",)),)
    offsets.clear()
    assert states.operator_report() == (OperatorElements(0, ()),)


def test_owners_take_over_by_mode() -> None:
    """From one owner to two, and from two to three: each says who they are."""
    halves = [KeyGroupRange(0, 63), KeyGroupRange(64, 127)]
    thirds = [KeyGroupRange(0, 42), KeyGroupRange(43, 85), KeyGroupRange(86, 127)]
    states = all_states()
    modes: list[Mode] = ["split", "union", "broadcast"]
    for mode in modes:
        states.operator_state(mode, int, mode).extend([1, 2, 3])

    def read(states: KeyedStates) -> list[list[int]]:
        return [list(states.operator_state(mode, int, mode)) for mode in modes]

    two = [reopened([states], part, halves) for part in halves]
    assert [read(each) for each in two] == [[[1, 2], [1, 2, 3], [1, 2, 3]], [[3], [1, 2, 3], [1, 2, 3]]]
    two[1].operator_state("broadcast", int, "broadcast").replace([4])
    three = [reopened(two[::-1], part, thirds[::-1]) for part in thirds]
    doubled = [1, 2, 3, 1, 2, 3]
    assert [read(each) for each in three] == [
        [[1], doubled, [1, 2, 3]],
        [[2], doubled, [4]],
        [[3], doubled, [1, 2, 3]],
    ]


def test_union_that_owners_do_not_take_counts_once() -> None:
    """Each of them hands on all of it, run after run, and a later owner finds it once, beside what others took."""
    halves = [KeyGroupRange(0, 63), KeyGroupRange(64, 127)]
    states = all_states()
    states.operator_state("notes", int, "union").extend([1, 2])
    owners = [reopened([states], part, halves) for part in halves]
    for _ in range(3):
        owners = [reopened(owners, part, halves) for part in halves]
    assert [list(each.operator_state("notes", int, "union")) for each in owners] == [[1, 2], [1, 2]]
    owners = [reopened(owners, part, halves) for part in halves]
    assert list(owners[0].operator_state("notes", int, "union")) == [1, 2, 1, 2]  # both had declared it, and kept all
    owners[0].operator_state("notes", int, "union").replace([3])
    assert list(reopened(owners).operator_state("notes", int, "union")) == [3, 1, 2, 1, 2]


def test_owner_of_a_part_has_to_know_the_others() -> None:
    """Otherwise each took the same share; and what it would contribute to a commit would lose the rest."""
    states = all_states()
    states.operator_state("offsets", int).append(1)
    alone = reopened([states], KeyGroupRange(0, 63))
    with pytest.raises(InputError):
        alone.operator_state("offsets", int)
    with pytest.raises(InputError):
        alone.operator_report()
    with pytest.raises(InputError):
        reopened([states], KeyGroupRange(0, 63), [KeyGroupRange(0, 31), KeyGroupRange(32, 127)])
    assert KeyedStates(KeyGroupRange(0, 63), MAX_PARALLELISM).operator_report() == ()


def test_name_with_another_mode_or_type_is_refused() -> None:
    """In one process and from run to run; the same name and mode is the same state."""
    states = all_states()
    offsets = states.operator_state("offsets", int)
    offsets.append(1)
    assert states.operator_state("offsets", int) is offsets
    for each in (states, reopened([states])):
        for declare in (
            lambda each=each: each.operator_state("offsets", int, "union"),
            lambda each=each: each.operator_state("offsets", str),
            lambda each=each: each.value_state("offsets", int),
        ):
            with pytest.raises(StateTypeError):
                declare()
    with pytest.raises(InputError):
        states.operator_state("others", int, "scatter")  # type: ignore[arg-type]


def test_type_evolves_as_any_other() -> None:
    """By an upcast too."""
    states = all_states()
    states.operator_state("offsets", int).append(1)
    assert list(reopened([states]).operator_state("offsets", str, migrate=str)) == ["1"]


def test_wrong_element_is_refused() -> None:
    """None of an extend is done."""
    offsets = all_states().operator_state("offsets", int)
    offsets.append(1)
    for operation in (
        lambda: offsets.append("2"),  # type: ignore[arg-type]
        lambda: offsets.extend([2, "3"]),  # type: ignore[list-item]
        lambda: offsets.replace([2, None]),  # type: ignore[list-item]
    ):
        with pytest.raises(ValueEncodeError):
            operation()
    assert list(offsets) == [1]


def test_more_than_a_commit_should_hold_is_refused() -> None:
    """Whichever way it comes; then there is room again for what fits."""
    blobs = all_states().operator_state("blobs", bytes)
    third = b"x" * (OPERATOR_BYTES_MAX // 3)
    blobs.extend([third, third])
    for operation in (lambda: blobs.append(third), lambda: blobs.extend([third]), lambda: blobs.replace([third] * 3)):
        with pytest.raises(InputError):
            operation()
    assert len(blobs) == 2
    blobs.replace([third])
    blobs.append(third)
    blobs.clear()
    blobs.extend([third, third])
    assert len(blobs) == 2


def test_a_commit_holds_as_much_as_the_limit_says() -> None:
    """Exactly that, however it comes; not one byte more. A refusal tells what there would be."""
    limit, blobs = OPERATOR_BYTES_MAX, all_states().operator_state("blobs", bytes)
    blobs.append(b"x")
    beside = sum(map(len, blobs.report())) - 1  # what is stored beside a short value
    longest = b"x" * (limit - 5)  # beside a long one: five bytes
    blobs.replace([longest])
    assert sum(map(len, blobs.report())) == limit
    for operation in (lambda: blobs.append(b""), lambda: blobs.extend([b""]), lambda: blobs.replace([longest, b""])):
        with pytest.raises(InputError) as raised:
            operation()
        assert raised.value.facts["size_bytes"] == limit + beside
    blobs.clear()
    blobs.append(longest)
    blobs.clear()
    blobs.extend([longest])
    assert list(blobs) == [longest]
