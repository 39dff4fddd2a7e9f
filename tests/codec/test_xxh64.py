"""Hashes of many values at once are those of the library, and of the key groups."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh64_intdigest

from statebackend._codec.xxh64 import hash_integers, hash_strings
from statebackend._tables.key_groups import SEED, key_hash
from tests.state.sample_keys import INTEGERS

SEEDS = st.integers(0, 2**64 - 1)


def packed(strings: list[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The strings in one array, with a gap in front, and their starts and lengths."""
    lengths = np.array([len(each) for each in strings], np.int64)
    data = np.frombuffer(b"gap" + b"".join(strings), np.uint8)
    return data, np.cumsum(lengths) - lengths + 3, lengths


@given(strings=st.lists(st.binary(max_size=300), max_size=20), seed=SEEDS)
def test_strings_have_the_library_s_hash(strings: list[bytes], seed: int) -> None:
    """Of all lengths together, below and above those that are hashed one by one."""
    expected = [xxh64_intdigest(each, seed) for each in strings]
    assert hash_strings(*packed(strings), np.uint64(seed)).tolist() == expected


def test_every_length_has_the_library_s_hash() -> None:
    """0 to 600 bytes: each way through the hash, alone and among others."""
    strings = [bytes(range(256))[at:] * 3 for at in range(256)] + [b"x" * length for length in range(600)]
    expected = [xxh64_intdigest(each, SEED) for each in strings]
    assert hash_strings(*packed(strings), np.uint64(SEED)).tolist() == expected
    for number in range(0, len(strings), 7):
        found = hash_strings(*packed([strings[number]]), np.uint64(SEED))
        assert found.tolist() == [expected[number]]


@given(values=st.lists(st.integers(-(2**63), 2**63 - 1) | st.sampled_from(INTEGERS)), seed=SEEDS)
def test_integers_have_the_library_s_hash(values: list[int], seed: int) -> None:
    """Of their eight bytes."""
    expected = [xxh64_intdigest(each.to_bytes(8, "little", signed=True), seed) for each in values]
    assert hash_integers(np.array(values, np.int64), np.uint64(seed)).tolist() == expected


@settings(max_examples=50)
@given(st.lists(st.tuples(st.text(max_size=40), st.integers(-(2**63), 2**63 - 1), st.binary(max_size=40)), max_size=9))
def test_tuples_are_chained_by_seed(keys: list[tuple[str, int, bytes]]) -> None:
    """The hash of each part is the seed of the next, as a key group has it."""
    hashes = hash_strings(*packed([each[0].encode() for each in keys]), np.uint64(SEED))
    hashes = hash_integers(np.array([each[1] for each in keys], np.int64), hashes)
    hashes = hash_strings(*packed([each[2] for each in keys]), hashes)
    assert hashes.tolist() == [key_hash(each, SEED) for each in keys]


def test_more_values_than_are_hashed_at_once() -> None:
    """Chunks meet without a gap."""
    values = np.arange(100_000)
    hashes = hash_integers(values, np.uint64(SEED))
    for number in (0, 32_767, 32_768, 65_535, 65_536, 99_999):
        assert hashes[number] == key_hash(number, SEED)
