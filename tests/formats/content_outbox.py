"""What the golden files of the outbox hold: plain data, fixed for good. A change here would be a change of the past."""

from typing import Any

from tests.formats.content_v1 import COMMIT

ROWS: list[dict[str, Any]] = [{"tailnum": "N14228", "legs": 3}, {"tailnum": "Zürich 🛫", "legs": -1}]
"""Of the schema `tailnum: string, legs: int64`."""

COMMIT_WITH_OUTBOX: dict[str, Any] = {
    **COMMIT,
    "sequence": 10,
    "checkpoint_id": 44,
    "parent": 7,
    "outbox": [
        {
            "source": {"query_id": "6e2f", "batch_id": 40, "run_id": "9c00"},
            "rows": 70000,
            "schema": b"\xff\xff\xff\xff an Arrow schema",
            "parts": [
                ["outbox/00000003-00000000-0a1b2c3d4e5f60718293a4b5c6d7e8f9", 0, 1048576, 3735928559],
                ["outbox/00000003-00000001-1a2b3c4d5e6f708192a3b4c5d6e7f809", 0, 2048, 305419896],
            ],
        },
        {
            "source": {"query_id": "6e2f", "batch_id": 41, "run_id": "9c01"},
            "rows": 2,
            "schema": b"\xff\xff\xff\xff an Arrow schema",
            "parts": [["", 0, 477, 2816212473]],
        },
    ],
}
"""What is left of the batch before, in two objects, and what its own batch has put out, which it carries: the part of
`output-v1.bin`."""
