"""The invariants of the models: assertions with names, so that a run can say which of them has noticed a mutant."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import statebackend as sb
from statebackend.abc import RestoreReport

Visible = Mapping[str, Mapping[sb.Key, Any]]
"""All that can be read, by the name of the state."""
Timed = tuple[float, sb.Key]
"""A time, and the key that is due then."""


# ---------------------------------------------------------------------------------------------------------- the states


def assert_state_is_the_dictionary(parts: Sequence[Visible], expected: Visible) -> None:
    """What the owners show is what the dictionaries hold, after every step, and no key is with two owners."""
    _assert_same(joined(parts), expected)


def assert_every_way_agrees(ways: Sequence[object], what: str) -> None:
    """A state says the same by each of the ways in which it can be read."""
    assert all(each == ways[0] for each in ways), f"{what} says {ways}"


def assert_popped(found: object, expected: object) -> None:
    """`pop` returns what was there, and nothing else."""
    assert found == expected, f"popped {found!r}, and {expected!r} was there"


def assert_operator_state(found: Sequence[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]]) -> None:
    """Each owner has his share of each operator state."""
    assert found == expected, f"the shares are {found}, not {expected}"


# ---------------------------------------------------------------------------------------------------------- the timers


def assert_in_turn(due: Sequence[Timed]) -> None:
    """Timers that are due come in the order of their times, each once."""
    times = [at for at, _ in due]
    assert times == sorted(times), f"not in the order of time: {due}"
    assert len(due) == len(set(due)), f"a timer came twice: {due}"


def assert_fired(found: AbstractSet[Timed], expected: AbstractSet[Timed]) -> None:
    """By a time that the caller says, those timers fire that are due, and no others."""
    assert found == expected, f"fired {found ^ expected} too much or too little"


def assert_alarms_ring_once(found: AbstractSet[Timed], expected: AbstractSet[Timed], *, is_left: bool) -> None:
    """By the job's clock, each alarm that is due rings, once, and none is left that is due."""
    assert found == expected, f"rang {found ^ expected} too much or too little"
    assert not is_left, "an alarm is left that is due"


# -------------------------------------------------------------------------------------------- checkpoints and restores


def assert_stands_on(found: int, asked: int) -> None:
    """Whoever opens the job stands on the newest checkpoint, or on the one that was asked for. -1: on none."""
    assert found == asked, f"stands on checkpoint {found}, not on {asked}"


def assert_restored_is_committed(parts: Sequence[Visible], committed: Visible) -> None:
    """What is restored is what was committed, whoever wrote it and whoever owns it now."""
    _assert_same(joined(parts), committed)


def assert_only_what_is_not_retained_is_gone(checkpoint_id: int, *, was_swept: bool, retained: Sequence[int]) -> None:
    """A checkpoint cannot be opened only if a sweep was there, and if neither the branch nor a savepoint keeps it."""
    assert was_swept, f"checkpoint {checkpoint_id} is gone, and nothing was ever swept"
    assert checkpoint_id not in retained, f"checkpoint {checkpoint_id} is gone, and {retained} are retained"


def assert_a_name_is_given_once(name: str | None, taken: AbstractSet[str], *, is_refused: bool) -> None:
    """A checkpoint is refused the name of a savepoint if it is taken, and only then."""
    assert is_refused == (name in taken), f"{name} was {'refused' if is_refused else 'given'}, {taken} are taken"


def assert_local_is_enough(report: RestoreReport) -> None:
    """What was said to be local, and is as it was, is restored without the primary."""
    assert (report.files_primary, report.fallbacks) == (0, ()), f"said to be local, and not read there: {report}"


def assert_sizes_are_counted(found: Mapping[str, int], committed: Visible, exact: Sequence[str]) -> None:
    """A commit says how many keys there are of each of the `exact` states."""
    counted = {name: len(committed[name]) for name in exact}
    assert {name: found.get(name, 0) for name in exact} == counted, f"the commit says {found}, there are {counted}"


# ------------------------------------------------------------------------------------------------------------- readers


def assert_a_reader_sees_the_commit(found: Visible, committed: Visible) -> None:
    """Who opens the newest checkpoint to read it has what was committed, in the part that he asked for."""
    _assert_same(found, committed)


def assert_rows_are_the_commit(found: Sequence[tuple[Any, Any]], committed: Mapping[Any, Any]) -> None:
    """A state read as rows has each key of the commit once, with its value, and nothing else."""
    assert len(dict(found)) == len(found), f"a key is read twice: {found}"
    assert dict(found) == committed, f"read {dict(found)}, not {committed}"


# ---------------------------------------------------------------------------------------------- hands and kills


def assert_handed_on(found: Mapping[str, Any], expected: Mapping[str, Any], checkpoint: object) -> None:
    """Whatever hands a job goes through, a checkpoint holds what its winners did, once, and what is to be published."""
    wrong = {name: (found[name], expected[name]) for name in expected if found[name] != expected[name]}
    assert not wrong, f"checkpoint {checkpoint} has, and should have: {wrong}"


def assert_published_as_staged(found: tuple[int, list[bytes]], staged: tuple[int, list[bytes]]) -> None:
    """Output is handed out oldest first, byte for byte as it was staged."""
    assert found == staged, f"the output of batch {found[0]} is not that of batch {staged[0]} as it was staged"


def assert_every_byte_is_there(damages: Sequence[object], failures: Sequence[object], stopped: str | None) -> None:
    """After a sweep when all is quiet and old, every byte that a retained commit needs is there and whole."""
    assert (list(failures), stopped) == ([], None), f"the sweep failed: {failures}, {stopped}"
    assert not damages, f"damaged or gone: {damages}"


def assert_survives_kills(batch: int, *, acknowledged: int, begun: int, is_equal: bool) -> None:
    """After a kill all is there that was acknowledged, nothing that was never begun, and no batch in part or twice."""
    assert batch >= acknowledged, f"batch {acknowledged} is lost, {batch} is there"
    assert batch <= begun, f"batch {batch} was never begun"
    assert is_equal, f"what was committed with batch {batch} is not what its batches come to"


def _assert_same(found: Visible, expected: Visible) -> None:
    wrong = {name: (found.get(name), expected[name]) for name in expected if found.get(name) != expected[name]}
    assert not wrong, f"found, and expected: {wrong}"


def joined(parts: Sequence[Visible]) -> Visible:
    """What the owners show, together. Raises `AssertionError` for a key that two of them have."""
    together = {name: {key: each for part in parts for key, each in part[name].items()} for name in parts[0]}
    for name, found in together.items():
        assert len(found) == sum(len(part[name]) for part in parts), f"{name} has a key with two owners"
    return together
