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
    if not len(counts):
        return []
    # A row for each run, which ends at the right: zeros before its first page add nothing. Neighbours are combined
    # until there is one for each.
    width = 1 << (max(counts) - 1).bit_length()
    found: Checksums = np.zeros((len(counts), width), np.uint32)
    first = 0
    for row, count in zip(found, counts, strict=True):
        row[width - count :] = checksums[first : first + count]
        first += count
    while found.shape[1] > 1:
        found = _multiplied(found[:, ::2], page_bytes) ^ found[:, 1::2]
        page_bytes *= 2
    of_runs: list[int] = found[:, 0].tolist()
    return of_runs


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
    octets = np.ascontiguousarray(numbers, "<u4").view(np.uint8).reshape(*numbers.shape, 4)
    product: Checksums = table[0][octets[..., 0]]
    for place in (1, 2, 3):
        product ^= table[place][octets[..., place]]
    return product
