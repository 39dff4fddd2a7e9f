"""Cuts the body of a large object into parts, which are sent one by one."""

from collections.abc import Iterator, Sequence


def parts(chunks: Sequence[memoryview], part_bytes: int) -> Iterator[Sequence[memoryview]]:
    """Cut `chunks` into parts of exactly `part_bytes`, except the last one. Copies nothing."""
    part: list[memoryview] = []
    room = part_bytes
    for chunk in chunks:
        rest = chunk
        while len(rest) >= room:
            yield [*part, rest[:room]]
            rest, part, room = rest[room:], [], part_bytes
        if len(rest):
            part.append(rest)
            room -= len(rest)
    if part:
        yield part
