"""What the golden files of segments of version 2 hold: plain data, fixed for good. See `content_v1`."""

from typing import Any

from tests.formats import content_v1
from tests.formats.content_v1 import Changes

EXAMPLE: list[tuple[str, int, Changes]] = [
    ("0-127", 0, [(13, 1, 0, "N14228", b"\x03"), (6, 0, 0, "N14229", b""), (9, 1, 1, ("EWR", 7), b"\xc3")]),
]

SEGMENT: list[tuple[str, int, Changes]] = [
    *content_v1.SEGMENT[:3],
    ("0-32767", 3, [(0, 1, 0, "first", b"\x01"), (32_767, 1, 0, "last", b"\x02")]),
    ("64-127", 4, [(64, 1, 5, ("EWR", number), b"value") for number in range(9)]),
]

INLINE: dict[str, Any] = {
    **content_v1.INLINE,
    "ranges": [
        {
            **content_v1.INLINE["ranges"][0],
            "changelog": [
                *content_v1.COMMIT["ranges"][0]["changelog"],
                [["", 0, 0, 0], "0-63", 7, 0, 352, [0, 63], 12],
                [["", 0, 0, 0], "64-127", 1, 352, 76, [127, 127], 1],
            ],
        }
    ],
}
"""Carries two of the change sets of `SEGMENT`: the first and the third."""
