"""Names of objects: what is made parses back, sorts in its order, and nothing else is taken for one of ours."""

import pytest

from statebackend._log.fresh_names import attempt_names, new_names
from statebackend._log.names import (
    DataName,
    Hint,
    SavepointMarker,
    data_name_of,
    entry_key,
    floor_key,
    floor_of,
    hint_of,
    marker_of,
    parse_hint,
    sequence_of,
)
from statebackend.ids import CommitSequence, Epoch
from tests.log.logs import commit

HEX = "0123456789abcdef" * 2


def test_keys_of_commits_sort_as_their_sequences() -> None:
    """A listing's last key is the newest commit."""
    sequences = [0, 9, 10, 99, 100, 10**6, 10**11]
    assert sorted(map(entry_key, sequences)) == [entry_key(sequence) for sequence in sequences]


@pytest.mark.parametrize("sequence", [0, 7, 10**11, 10**12])
def test_entries_are_known_by_their_keys(sequence: int) -> None:
    """There and back."""
    assert sequence_of(entry_key(sequence)) == sequence


@pytest.mark.parametrize(
    "key", ["commits/7", "commits/000000000007x", "commits/", "000000000007", "commits/0000000000007", "commits/²", "x"]
)
def test_other_keys_are_no_entries(key: str) -> None:
    """Only the one key under which a writer would have made the entry."""
    assert sequence_of(key) is None


@pytest.mark.parametrize("key", ["swept/7", "swept/000000000007x", "swept/", "swept/²", "000000000007", "newest"])
def test_other_keys_are_no_floors(key: str) -> None:
    """Only the one key under which a sweep would have made the floor."""
    assert floor_of(key) is None
    assert floor_of(floor_key(7)) == 7


def test_the_hint_is_its_content() -> None:
    """There and back; it names one entry, by its stamp too."""
    hint = parse_hint(hint_of(commit(19)))
    assert hint == Hint(CommitSequence(19), b"mine", verified=True)
    assert hint.names(commit(19))
    assert not hint.names(commit(19, stamp="other"))
    assert not hint.names(commit(18))


@pytest.mark.parametrize("content", [b"", b"nonsense", b" mine", b"-3 mine"])
def test_a_damaged_hint_is_none(content: bytes) -> None:
    """Then the end of the log is looked for without one."""
    assert parse_hint(content) is None


@pytest.mark.parametrize(
    "key",
    ["savepoints/a", "savepoints/a/b", "savepoints/a/7-x", "savepoints/.a/000000000007-x", "a/000000000007-x"],
)
def test_other_keys_are_no_markers(key: str) -> None:
    """A marker has a name, a place in the log, and a stamp."""
    assert marker_of(key) is None


def test_a_marker_is_its_key() -> None:
    """There and back."""
    marker = SavepointMarker("a.b", CommitSequence(7), "0f" * 16)
    assert marker.key == f"savepoints/a.b/000000000007-{'0f' * 16}"
    assert marker_of(marker.key) == marker


def test_the_epoch_is_in_the_name_wherever_an_uploader_puts_it() -> None:
    """By the last part of the key."""
    assert data_name_of(f"sealed/2026/00000012-00000001-{HEX}") == DataName(Epoch(12), None)
    assert data_name_of(f"00000012-00000001-{HEX}/x") is None


def test_names_of_a_backend_sort_as_they_were_made() -> None:
    """They tell the epoch, and no attempt."""
    fresh = new_names(Epoch(12))
    names = [fresh() for _ in range(11)]
    assert sorted(names) == names
    assert {data_name_of(f"segments/{name}") for name in names} == {DataName(Epoch(12), None)}


def test_names_of_attempts_sort_as_their_bases() -> None:
    """They tell the log position of the base, which is 0 before the first commit."""
    bases = [None, commit(0), commit(9), commit(10), commit(10**7)]
    names = [attempt_names(Epoch(3), base)() for base in bases]
    assert sorted(names) == names
    assert [data_name_of(f"outbox/{name}") for name in names] == [
        DataName(Epoch(3), position) for position in (0, 1, 10, 11, 10**7 + 1)
    ]
