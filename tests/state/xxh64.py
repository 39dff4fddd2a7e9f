"""xxh64 written out from its published description, in plain integers: slow, and nobody else's code."""

P1 = 11400714785074694791
P2 = 14029467366897019727
P3 = 1609587929392839161
P4 = 9650029242287828579
P5 = 2870177450012600261
MASK = 2**64 - 1


def xxh64(data: bytes, seed: int) -> int:
    """The digest, unsigned."""
    rest, length = data, len(data)
    if length >= 32:
        lanes = [seed + P1 + P2, seed + P2, seed, seed - P1]
        while len(rest) >= 32:
            lanes = [_round(lane, _word(rest, 8 * number, 8)) for number, lane in enumerate(lanes)]
            rest = rest[32:]
        digest = sum(_rotate(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True))
        for lane in lanes:
            digest = (digest ^ _round(0, lane)) * P1 + P4
    else:
        digest = seed + P5
    return _avalanche(_tail((digest + length) & MASK, rest))


def _tail(digest: int, rest: bytes) -> int:
    while len(rest) >= 8:
        digest = _rotate(digest ^ _round(0, _word(rest, 0, 8)), 27) * P1 + P4 & MASK
        rest = rest[8:]
    if len(rest) >= 4:
        digest = _rotate(digest ^ (_word(rest, 0, 4) * P1 & MASK), 23) * P2 + P3 & MASK
        rest = rest[4:]
    for byte in rest:
        digest = _rotate(digest ^ (byte * P5 & MASK), 11) * P1 & MASK
    return digest


def _avalanche(digest: int) -> int:
    digest = (digest ^ digest >> 33) * P2 & MASK
    digest = (digest ^ digest >> 29) * P3 & MASK
    return digest ^ digest >> 32


def _round(lane: int, word: int) -> int:
    return _rotate(lane + word * P2, 31) * P1 & MASK


def _rotate(value: int, by: int) -> int:
    value &= MASK
    return (value << by | value >> 64 - by) & MASK


def _word(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little")
