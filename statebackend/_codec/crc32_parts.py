"""The crc32 of a whole from those of its parts: it proves checksums of pages that nobody has read.

crc32 is linear: appending `n` bytes multiplies what came before by x^8n, modulo the polynomial, and the crc32 of the
appended bytes is added. So `crc32(a + b) = shifted(crc32(a), len(b)) ^ crc32(b)`, as zlib's `crc32_combine` has it.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Checksums: TypeAlias = npt.NDArray[np.uint32]

_POLYNOMIAL: Final = 0xEDB88320
_ONE: Final = 1 << 31  # bits are mirrored: this is x^0


def combined(first: int, second: int, second_length: int) -> int:
    """The crc32 of two pieces of bytes, one behind the other."""
    return _product(_power(second_length), first) ^ second


def of_pages(checksums: Checksums, page_bytes: int, counts: Sequence[int]) -> Sequence[int]:
    """The crc32 of each run of pages of one size: `counts` says how many pages follow each other, at least one."""
    ends = np.cumsum(np.asarray(counts, np.int64))
    behind = np.repeat(ends, counts) - 1 - np.arange(len(checksums))  # pages behind each, in its run
    shifted = checksums.astype(np.uint32)
    for bit in range(int(behind.max(initial=0)).bit_length()):
        chosen = np.flatnonzero(behind >> bit & 1)
        shifted[chosen] = _multiplied(shifted[chosen], page_bytes << bit)
    found: list[int] = np.bitwise_xor.reduceat(shifted, ends - counts).tolist() if len(counts) else []
    return found


def _product(one: int, other: int) -> int:
    """The product of two polynomials, modulo that of crc32."""
    product = 0
    while one:
        if one & _ONE:
            product ^= other
        one = one << 1 & 0xFFFFFFFF
        other = other >> 1 ^ (_POLYNOMIAL if other & 1 else 0)
    return product


@lru_cache(maxsize=4096)
def _power(length: int) -> int:
    """x^8`length`, modulo the polynomial of crc32."""
    power = _ONE  # x^0
    for bit in range(length.bit_length()):
        if length >> bit & 1:
            power = _product(power, _square(bit))
    return power


@lru_cache(maxsize=64)
def _square(bit: int) -> int:
    """x^8, squared so many times, modulo the polynomial."""
    return _product(_square(bit - 1), _square(bit - 1)) if bit else _ONE >> 8


@lru_cache(maxsize=256)
def _table(length: int) -> Checksums:
    """For each byte of a number, and each value of it, the product with x^8`length`."""
    bits = [_product(_power(length), 1 << bit) for bit in range(32)]
    table = np.zeros((4, 256), np.uint32)
    values = np.arange(256, dtype=np.uint32)
    for bit, product in enumerate(bits):
        row = table[bit // 8]
        row[(values >> np.uint32(bit % 8) & np.uint32(1)) == 1] ^= np.uint32(product)
    return table


def _multiplied(numbers: Checksums, length: int) -> Checksums:
    table = _table(length)
    octets = np.ascontiguousarray(numbers, "<u4").view(np.uint8).reshape(-1, 4)
    product: Checksums = table[0][octets[:, 0]]
    for place in (1, 2, 3):
        product ^= table[place][octets[:, place]]
    return product
