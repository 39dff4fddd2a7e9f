"""What the golden files of version 1 hold: plain data, fixed for good. A change here would be a change of the past."""

from typing import Any

# (log id, sequence number, [(key group, operation, state id, key, data), ...])
Changes = list[tuple[int, int, int, Any, bytes]]

EXAMPLE: list[tuple[str, int, Changes]] = [
    ("0-127", 0, [(13, 1, 0, "N14228", b"\x03"), (6, 0, 0, ("EWR", 7), b"")]),
]

SEGMENT: list[tuple[str, int, Changes]] = [
    (
        "0-63",
        7,
        [
            (0, 1, 0, "", b"\xc0"),
            (1, 1, 0, "Zürich 🛫", b"\x00" * 60),
            (63, 1, 1, 0, b"\x01"),
            (5, 1, 1, -1, b"\x02"),
            (6, 1, 1, 2**63 - 1, b"\x03"),
            (7, 1, 1, -(2**63), b"\x04"),
            (8, 1, 2, b"", b""),
            (9, 1, 2, b"\x00\xff", b"\xc4\x00"),
            (10, 1, 3, ("EWR", 1, b"x"), b"\x90"),
            (11, 1, 3, (("a", (2,)), b"\xff"), b"\x80"),
            (12, 0, 3, ("a",), b""),
            (13, 0, 0, "gone", b""),
        ],
    ),
    ("64-127", 0, [(64 + number % 64, 1, 0, f"key {number:04d}", b"value " * 4) for number in range(100)]),
    ("64-127", 1, [(127, 0, 0, "key 0000", b"")]),
    ("64-127", 2, [(-1, 8, 0, "", b"metadata")]),
]

_STAMP = "000000000000f03f"  # 1.0
KINDS: list[tuple[str, int, Changes]] = [
    (
        "0-127",
        0,
        [
            (76, 1, 0, "a", bytes.fromhex("07")),  # a value, plain
            (83, 1, 0, "b", bytes.fromhex("c1 01 01000000 08")),  # of version 1
            (101, 1, 0, "c", bytes.fromhex("c1 02" + _STAMP + "09")),  # with a stamp
            (37, 1, 0, "d", bytes.fromhex("c1 03 01000000" + _STAMP + "0a")),  # with both
            (76, 1, 1, "a", bytes.fromhex("01 01 01 02")),  # a list: two elements, and two more in one too long
            (76, 2, 1, "a", bytes.fromhex("01 03 ff 2c010000 da 0129") + b"x" * 297),
            (76, 3, 2, "a", bytes.fromhex("02 a178 01 01")),  # a map: x is 1, y is 2, and x is removed
            (76, 3, 2, "a", bytes.fromhex("02 a179 0b c102" + _STAMP + "02")),
            (76, 4, 2, "a", bytes.fromhex("a178")),
            (83, 0, 2, "b", b""),
            (76, 1, 3, "a", bytes.fromhex(_STAMP + "0000000000000040")),  # timers at 1 and 2
            (76, 1, 4, "a", bytes.fromhex("05")),  # a reducing and an aggregating state
            (76, 1, 5, "a", bytes.fromhex("92 06 02")),
            (76, 1, 6, "a", bytes.fromhex("c1 00 c1")),  # a serializer of its own
        ],
    ),
]

COMMIT: dict[str, Any] = {
    "entry": "commit",
    "job": "fleet",
    "sequence": 7,
    "checkpoint_id": 42,
    "epoch": 3,
    "parent": 6,
    "stamp": "3f6c1a52e0b14c0d9a7f5e2b8c4d6e10",
    "max_parallelism": 128,
    "ranges": [
        {
            "key_groups": [0, 127],
            "changelog": [[["segments/0a1b2c", 0, 113, 1618522507], "0-127", 0, 8, 66, [6, 13], 2]],
            "bases": [],
            "operator": [],
        }
    ],
    "states": [
        {
            "state_id": 0,
            "name": "jumps",
            "kind": "value",
            "schema": '"int"',
        }
    ],
    "source": {"query_id": "6e2f", "batch_id": 41, "run_id": "9c01"},
    "committed_at_s": 1357016400.5,
    "release": "0.1.0",
}

HISTORY: dict[str, Any] = {
    **COMMIT,
    "ranges": [{**COMMIT["ranges"][0], "history": bytes.fromhex("0102030405060708090a0b0c0d0e0f10")}],
}

UNTAKEN: dict[str, Any] = {
    **COMMIT,
    "ranges": [
        {
            **COMMIT["ranges"][0],
            "key_groups": [0, 63],
            "operator": [{"state_id": 4, "elements": [b"\x01", b"\x02"], "is_untaken": True}],
        },
        {
            "key_groups": [64, 127],
            "changelog": [],
            "bases": [],
            "operator": [{"state_id": 4, "elements": [b"\x03"]}],
        },
    ],
}
"""A union state that one of two owners declared; the other one hands on what it was given."""

INLINE: dict[str, Any] = {
    **COMMIT,
    "sequence": 9,
    "checkpoint_id": 43,
    "epoch": 4,
    "parent": 7,
    "ranges": [
        {
            "key_groups": [0, 127],
            "changelog": [
                *COMMIT["ranges"][0]["changelog"],
                [["", 0, 0, 0], "0-63", 7, 0, 246, [0, 63], 12],
                [["", 0, 0, 0], "64-127", 1, 246, 56, [127, 127], 1],
            ],
            "bases": [],
            "operator": [],
        }
    ],
}
"""Carries two of the change sets of `SEGMENT`: the first and the third."""

CLAIM: dict[str, Any] = {
    "entry": "claim",
    "job": "fleet",
    "sequence": 8,
    "epoch": 4,
    "stamp": "b07d2c96a1e84f35862f0c9d7e51a3f4",
    "newest": 7,
    "claimed_at_s": 1357016460.25,
    "release": "0.1.0",
    "base": 5,
}

NATIVE: dict[str, Any] = {
    **COMMIT,
    "ranges": [
        {
            "key_groups": [0, 63],
            "changelog": COMMIT["ranges"][0]["changelog"],
            "bases": [],
            "operator": [],
            "native": [
                [
                    [0, 127],
                    41,
                    [[0, 31], [48, 63]],
                    [
                        ["000008.sst", ["segments/0a1b2d", 0, 1034, 305419896]],
                        ["CURRENT", ["segments/0a1b2e", 0, 16, 2596069104]],
                    ],
                ]
            ],
        },
        {"key_groups": [64, 127], "changelog": [], "bases": [], "operator": []},
    ],
}
"""Of version 3."""

SIZES: dict[str, Any] = {
    **COMMIT,
    "ranges": [
        {
            **COMMIT["ranges"][0],
            "key_groups": [0, 63],
            "sizes": [[[0], 48_800, 412_345, False], [[1, 3], 5_000_000_000, 77, True]],
            "restored": [3, 1, 1024, 66, 0.25],
        },
        {"key_groups": [64, 127], "changelog": [], "bases": [], "operator": [], "sizes": []},
    ],
}
MARKS: dict[str, Any] = {
    **{name: value for name, value in COMMIT.items() if name != "source"},
    "marks": [
        {"query_id": "a1c4", "batch_id": 7, "run_id": ""},
        {"query_id": "6e2f", "batch_id": 41, "run_id": "9c01"},
    ],
}
"""Made by hand, on top of the batches of two queries."""
ZONE: dict[str, Any] = {
    **COMMIT,
    "source": {"query_id": "a1c4", "batch_id": 8, "run_id": "77aa", "time_zone": "America/New_York"},
    "marks": [{"query_id": "6e2f", "batch_id": 41, "run_id": "9c01", "time_zone": "UTC"}],
}
"""Made for a batch whose session had a time zone, on top of another query's."""
CLOCK: dict[str, Any] = {
    **COMMIT,
    "ranges": [
        {**COMMIT["ranges"][0], "key_groups": [0, 63], "next_timer_s": 1357020000.5},
        {"key_groups": [64, 127], "changelog": [], "bases": [], "operator": [], "next_timer_s": None},
    ],
    "clock": {"now_s": 1357016340.25, "kind": "event"},
}
START: dict[str, Any] = {
    **{name: value for name, value in COMMIT.items() if name != "source"},
    "marks": [],
    "starts_from": {"orders": {"0": 1234, "1": 9}},
}
"""A seed: no batch yet, and where the stream has to begin."""
TRANSFORMED: dict[str, Any] = {
    **{name: value for name, value in START.items() if name != "starts_from"},
    "transformed": ["legs", "late"],
}
"""An edit by hand, with states that it has made as a whole."""
COLUMNS: dict[str, Any] = {
    **NATIVE,
    "ranges": [
        {
            **NATIVE["ranges"][0],
            "native": [
                [
                    *NATIVE["ranges"][0]["native"][0][:3],
                    [
                        *NATIVE["ranges"][0]["native"][0][3],
                        ["columns-000000", ["segments/0a1b2f", 0, 2048, 3735928559]],
                    ],
                ]
            ],
        },
        NATIVE["ranges"][1],
    ],
}
"""Of version 4."""

LOCAL_NATIVE: dict[str, Any] = {
    "job": "fleet",
    "operator": "state",
    "checkpoint_id": 41,
    "key_groups": [0, 127],
    "changelog": [],
    "native": NATIVE["ranges"][0]["native"][0][3],
}

LOCAL_SNAPSHOT: dict[str, Any] = {
    "job": "fleet",
    "operator": "jumps",
    "checkpoint_id": 42,
    "key_groups": [0, 127],
    "changelog": [[["segments/0a1b2c", 0, 113, 1618522507], "0-127", 0, 8, 66, [6, 13], 2]],
}
