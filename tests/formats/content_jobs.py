"""What the golden jobs hold: plain data, fixed for good. A change here would be a change of the past."""

from typing import Any, Final

import msgspec

STATES: Final[dict[str, dict[Any, Any]]] = {
    "legs": {"N14228": {"origin": "EWR", "hops": 1}, ("Zürich 🛫", 7, b"\xff"): {"origin": "ZRH", "hops": 4}, -5: None},
    "hops": {"N14228": ["EWR", "IAH"], 2**63 - 1: ["x" * 300]},
    "seen": {"N14228": {"EWR": 1, "IAH": 2}, b"\x00": {"": -1}},
    "total": {"N14228": 5, "N24211": 7},
    "mean": {"N14228": 2.5},
    "due": {"N14228": [10.0, 20.0]},
}
"""By state, then by key. Of `kinds` and `rocksdb`: those of RocksDB have no other kinds than those on the heap."""

OFFSETS: Final = ["part 0: 7", "part 1: 9"]
"""Operator state of `kinds`, in mode `union`."""

SAVED_LEGS: Final[dict[Any, Any]] = {"N14228": {"origin": "EWR", "hops": 1}, "gone": {"origin": "JFK", "hops": 9}}
"""`legs` at the savepoint `first`: before a key was dropped and others came."""

COLUMNS: Final[dict[Any, dict[str, Any]]] = {
    "N14228": {"n": 7, "dep": 1.5, "name": "EWR"},
    "N24211": {"n": None, "dep": -2.0, "name": "Zürich 🛫"},
    "N619AA": {"n": 9, "dep": None, "name": None},
}
"""The columnar state `fleet` of `columns`."""

SUMS: Final[dict[Any, int]] = {f"key {number}": sum(range(number, 24, 6)) for number in range(6)}
"""The value state `sums` of `ranges`: batch b, of 24, adds b to the key b % 6."""

OUTPUT: Final[list[list[dict[str, Any]]]] = [
    [{"key": "small", "legs": 1}],
    [{"key": f"N{number:05d}", "legs": number} for number in range(2000)],
]
"""Two batches of rows of `ranges` that were committed and not published: one in its commit, one in an object."""


class Leg(msgspec.Struct):
    """The type of `legs`."""

    origin: str
    hops: int
