"""xxh64 of many values at once, equal to the library's bit by bit.

A step of the hash is done for all values before the next step: about fifty calls of numpy, whatever the number of
values. Long values go through the library, where the call is no longer what costs.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
from xxhash import xxh64_intdigest

from statebackend._codec.columns import Integers, Octets, items_at

Hashes = npt.NDArray[np.uint64]
Seeds = Hashes | np.uint64

LONG_BYTES: Final = 256
"""Values of at least so many bytes are hashed one by one."""
AT_ONCE: Final = 1 << 15
"""Values hashed together: their intermediate values stay in the processor's cache."""

_P1: Final = np.uint64(11400714785074694791)
_P2: Final = np.uint64(14029467366897019727)
_P3: Final = np.uint64(1609587929392839161)
_P4: Final = np.uint64(9650029242287828579)
_P5: Final = np.uint64(2870177450012600261)
_P1_P2: Final = np.uint64((int(_P1) + int(_P2)) % (1 << 64))
_SHIFTS: Final = {each: np.uint64(each) for each in range(65)}


def hash_integers(values: npt.NDArray[np.int64], seeds: Seeds) -> Hashes:
    """The hash of each value's eight bytes, little-endian. `seeds`: one for all, or one for each."""
    out = np.empty(len(values), np.uint64)
    for at in range(0, len(values), AT_ONCE):
        chunk = slice(at, at + AT_ONCE)
        digest = np.full(len(out[chunk]), _P5 + np.uint64(8), np.uint64)
        digest += _chosen(seeds, chunk)
        out[chunk] = _avalanche(_word(digest, values[chunk].astype("<i8", copy=False).view(np.uint64)))
    return out


def hash_strings(data: Octets, starts: Integers, lengths: Integers, seeds: Seeds) -> Hashes:
    """The hash of each string `data[start : start + length]`. `seeds`: one for all, or one for each."""
    out = np.empty(len(starts), np.uint64)
    for at in range(0, len(starts), AT_ONCE):
        chunk = slice(at, at + AT_ONCE)
        out[chunk] = _hash_some(data, starts[chunk], lengths[chunk], _chosen(seeds, chunk))
    return out


def _hash_some(data: Octets, starts: Integers, lengths: Integers, seeds: Seeds) -> Hashes:
    longest = int(lengths.max(initial=0))
    if longest < 32:
        digest = np.full(len(starts), _P5, np.uint64)
        digest += seeds
        return _finish(data, starts, lengths, digest, lengths)
    out = np.empty(len(starts), np.uint64)
    short = np.flatnonzero(lengths < 32)
    out[short] = _hash_some(data, starts[short], lengths[short], _chosen(seeds, short))
    middle = np.flatnonzero((lengths >= 32) & (lengths < LONG_BYTES))
    if len(middle):
        out[middle] = _striped(data, starts[middle], lengths[middle], _chosen(seeds, middle))
    for number in np.flatnonzero(lengths >= LONG_BYTES).tolist():
        start, seed = int(starts[number]), int(seeds if isinstance(seeds, np.generic) else seeds[number])
        out[number] = xxh64_intdigest(data[start : start + int(lengths[number])].tobytes(), seed)
    return out


def _striped(data: Octets, starts: Integers, lengths: Integers, seeds: Seeds) -> Hashes:
    """Values of 32 bytes and more: four lanes take eight bytes each of every stripe of 32."""
    base = np.zeros(len(starts), np.uint64)
    base += seeds
    lanes = [base + _P1_P2, base + _P2, base, base - _P1]
    for stripe in range(int(lengths.max()) // 32):
        chosen = np.flatnonzero(lengths >= 32 * (stripe + 1))
        for number, lane in enumerate(lanes):
            word = _words(data, starts[chosen] + (32 * stripe + 8 * number))
            lane[chosen] = _round(lane[chosen], word)
    digest = _rotated(lanes[0], 1)
    for lane, by in zip(lanes[1:], (7, 12, 18), strict=True):
        digest += _rotated(lane, by)
    for lane in lanes:
        digest ^= _round(np.zeros_like(lane), lane)
        digest *= _P1
        digest += _P4
    done = lengths & ~np.int64(31)
    return _finish(data, starts + done, lengths - done, digest, lengths)


def _finish(data: Octets, starts: Integers, rest: Integers, digest: Hashes, lengths: Integers) -> Hashes:
    """Take in the bytes after the stripes, 0 to 31: words of eight bytes, one of four, then single bytes."""
    digest += lengths.view(np.uint64)
    at = starts.copy()
    for words in range(1, 4):
        chosen = _those(rest >= 8 * words)
        if chosen is None:
            break
        digest[chosen] = _word(digest[chosen], _words(data, at[chosen]))
        at[chosen] += 8
    chosen = _those((rest & 4) != 0)
    if chosen is not None:
        half = items_at(data, 4)[at[chosen]].view("<u4").astype(np.uint64)
        half *= _P1
        half ^= digest[chosen]
        half = _rotated(half, 23)
        half *= _P2
        half += _P3
        digest[chosen] = half
        at[chosen] += 4
    for single in range(1, 4):
        chosen = _those((rest & 3) >= single)
        if chosen is None:
            break
        byte = data[at[chosen]].astype(np.uint64)
        byte *= _P5
        byte ^= digest[chosen]
        byte = _rotated(byte, 11)
        byte *= _P1
        digest[chosen] = byte
        at[chosen] += 1
    return _avalanche(digest)


def _those(flags: npt.NDArray[np.bool_]) -> slice | Integers | None:
    """The places where a flag is set: a slice if at all of them, `None` if nowhere."""
    chosen = np.flatnonzero(flags)
    if len(chosen) == len(flags):
        return slice(None) if len(flags) else None
    return chosen if len(chosen) else None


def _chosen(seeds: Seeds, chosen: slice | Integers) -> Seeds:
    return seeds if isinstance(seeds, np.generic) else seeds[chosen]


def _words(data: Octets, starts: Integers) -> Hashes:
    return items_at(data, 8)[starts].view("<u8")


def _word(digest: Hashes, word: Hashes) -> Hashes:
    digest = _rotated(digest ^ _round(np.uint64(0), word), 27)
    digest *= _P1
    digest += _P4
    return digest


def _round(lane: Hashes | np.uint64, word: Hashes) -> Hashes:
    mixed = word * _P2
    mixed += lane
    mixed = _rotated(mixed, 31)
    mixed *= _P1
    return mixed


def _rotated(value: Hashes, by: int) -> Hashes:
    turned = value << _SHIFTS[by]
    turned |= value >> _SHIFTS[64 - by]
    return turned


def _avalanche(digest: Hashes) -> Hashes:
    digest ^= digest >> _SHIFTS[33]
    digest *= _P2
    digest ^= digest >> _SHIFTS[29]
    digest *= _P3
    digest ^= digest >> _SHIFTS[32]
    return digest
