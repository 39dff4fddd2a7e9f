"""What a value state logs: every touch that changes something, none that does not, in order and with its key group."""

import pytest

from statebackend._codec.change_sets.keyed_changes import keyed_changes
from statebackend._codec.change_sets.state_change import Operation, StateChange
from statebackend._codec.segment import decode_segment
from statebackend._state.declared import KeyedStates
from statebackend._tables.key_groups import key_group
from statebackend.ids import KeyGroupRange, SequenceNumber
from statebackend.testing.virtual_time import run_virtual
from tests.changelog.fakes import Uploader, open_log
from tests.changes import drained, rows_of

GROUPS = 128


@pytest.fixture
def states() -> KeyedStates:
    return KeyedStates(KeyGroupRange(0, GROUPS - 1), GROUPS)


@run_virtual
async def test_every_operation_is_logged_in_order() -> None:
    """Row: KvStateChangeLoggerImplTest.testMetadataOperationLogged. Each operation 7 times with changing keys.

    Without its metadata: here a commit carries the descriptor of every state.
    """
    uploader = Uploader()
    logged: list[StateChange] = []
    async with open_log(uploader) as log:
        for operation in (Operation.SET, Operation.CLEAR):
            for number in range(7):
                key = f"key {number}"
                logged.append(
                    StateChange(key_group(key, GROUPS), operation, 0, key, b"x" * (operation == Operation.SET))
                )
                log.writer.append(*keyed_changes(logged[-1:]))
        await log.writer.persist(SequenceNumber(0))
    (name,) = uploader.stored
    found = rows_of(part for _, changes in decode_segment(uploader.stored[name], name) for part in changes)
    assert found == logged


def test_a_value_that_is_set_is_logged_and_one_that_is_read_is_not(states: KeyedStates) -> None:
    """Rows of section 25, for the value state: put recorded, get not recorded, clear recorded."""
    values = states.value_state("n", int)
    values["a"] = 1
    (change,) = drained(states)
    assert (change.operation, change.key, change.key_group) == (Operation.SET, "a", key_group("a", GROUPS))
    assert values["a"] == 1
    assert values.get("b") is None
    assert list(values.items()) == [("a", 1)]
    assert drained(states) == []
    del values["a"]
    (change,) = drained(states)
    assert (change.operation, change.key) == (Operation.CLEAR, "a")


def test_a_logged_state_holds_what_the_plain_one_does(states: KeyedStates) -> None:
    """Row: ChangelogDelegateStateTest.testDelegatingValueState [hash map, RocksDB], of the heap table.

    There is no wrapper round a state here: it is one mapping, and its log replayed is that mapping again.
    """
    values, plain = states.value_state("n", int), dict[str, int]()
    for number in range(50):
        key = f"key {number % 7}"
        if number % 5 == 4:
            values.pop(key, None)
            plain.pop(key, None)
        else:
            values[key] = plain[key] = number
    again = KeyedStates(KeyGroupRange(0, GROUPS - 1), GROUPS, states.descriptors)
    again.replay(states.drain())
    assert dict(values) == dict(again.value_state("n", int)) == plain


@pytest.mark.parametrize(
    ("touched", "order", "arranged"),
    [
        ("cab", "abc", "abc"),
        ("xcyab", "abc", "xyabc"),
        ("ca", "abc", "ac"),
        ("xy", "abc", "xy"),
        ("xcyab", "", "xcyab"),
    ],
)
def test_what_is_not_in_the_order_comes_first_as_it_is(
    states: KeyedStates, touched: str, order: str, arranged: str
) -> None:
    """Changes of code that is alone, before the calls of a batch. New entries lie in the same order."""
    values = states.value_state("n", int)
    values["z"] = 0
    drained(states)
    for key in touched:
        values[key] = 1
    values.arrange(order)
    assert "".join(values) == "z" + arranged
    assert "".join(str(change.key) for change in drained(states)) == arranged
