"""The machines of the other files once more, on tables in RocksDB."""

from hypothesis import settings

from tests.state.test_kinds_model import EveryKindAgainstPlainPython
from tests.state.test_model import ValueStateAgainstDict


class EveryKindOnRocksDB(EveryKindAgainstPlainPython):
    """Lists and maps that are changed in place until a batch is sent, and bases made of views."""


class ValueStateOnRocksDB(ValueStateAgainstDict):
    """One cell per key."""


TestEveryKindOnRocksDB = EveryKindOnRocksDB.TestCase
TestEveryKindOnRocksDB.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestValueStateOnRocksDB = ValueStateOnRocksDB.TestCase
TestValueStateOnRocksDB.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
