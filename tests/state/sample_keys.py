"""Keys of every kind, as plain data: for the key groups here, and for Spark's own hash of the same keys elsewhere.

Each list has one type per key, or one shape per tuple, so that it can become one column, or some, of a table.
"""

STRINGS: list[str] = [
    "",
    "a",
    "N14228",
    "n14228",
    " N14228 ",
    "0",
    "true",
    "\0",
    "tab\tline\n",
    "é",
    "e\u0301",
    "Zürich",
    "日本語",
    "🛫",
    "\uffff",
    "\U0010ffff",
    "x" * 7,
    "x" * 8,
    "x" * 31,
    "x" * 32,
    "x" * 33,
    "x" * 1000,
]
"""Around the lengths at which xxh64 changes its way (4, 8, 32 bytes), and of one to four bytes per character."""

INTEGERS: list[int] = [
    0,
    1,
    -1,
    42,
    127,
    128,
    255,
    256,
    2**31 - 1,
    2**31,
    -(2**31),
    -(2**31) - 1,
    2**32,
    2**53,
    2**63 - 1,
    -(2**63),
]
"""To both ends of 64 bits."""

BYTES: list[bytes] = [
    b"",
    b"a",
    b"\x00",
    b"\x00\x00",
    b"\xff",
    b"N14228",
    bytes(range(256)),
    b"x" * 31,
    b"x" * 32,
    b"x" * 33,
]
"""Bytes that are text have the group of that text, and eight bytes that of an integer."""

STRING_INTEGER_PAIRS: list[tuple[str, int]] = [("", 0), ("EWR", 1), ("IAH", -1), ("EWR", 2**63 - 1), ("日本", -(2**63))]

INTEGER_BYTES_STRING_TRIPLES: list[tuple[int, bytes, str]] = [
    (0, b"", ""),
    (1, b"\x00", "a"),
    (-1, b"\xff\xfe", "é"),
    (2**40, b"x" * 40, "x" * 40),
]

SINGLES: list[tuple[str]] = [("",), ("a",), ("N14228",)]
"""A tuple of one has the group of what is in it."""

NESTED: list[tuple[tuple[str, int], bytes]] = [(("EWR", 1), b"a"), (("", -1), b"")]
"""As if written flat: a struct in a struct."""

ALL_KEYS: list[object] = [
    *STRINGS,
    *INTEGERS,
    *BYTES,
    *STRING_INTEGER_PAIRS,
    *INTEGER_BYTES_STRING_TRIPLES,
    *SINGLES,
    *NESTED,
]
