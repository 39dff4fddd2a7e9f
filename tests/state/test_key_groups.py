"""The key group of a key: known hashes, the hash written out once more, and what is not a key."""

import enum
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from statebackend._tables.key_groups import KEY_DEPTH_MAX, SEED, OwnedKeys, key_group, key_hash
from statebackend.errors import KeyGroupError, KeyTypeError
from statebackend.ids import MAX_PARALLELISM_LIMIT, KeyGroupRange
from tests.codec.samples import KEYS
from tests.examples import short_name_of
from tests.state import sample_keys
from tests.state.xxh64 import xxh64


class Place(NamedTuple):
    airport: str


class Code(enum.IntEnum):
    EWR = 1


class Name(str):
    """A subclass, as numpy's."""

    __slots__ = ()


def nested(depth: int) -> Any:
    """A key of so many tuples, one in the other."""
    key: Any = "a"
    for _ in range(depth):
        key = (key,)
    return key


NOT_KEYS = [
    True,
    False,
    None,
    1.0,
    float("nan"),
    1j,
    [],
    ["a"],
    {},
    {"a"},
    frozenset({"a"}),
    bytearray(b"a"),
    memoryview(b"a"),
    (),
    (1, ()),
    ("a", None),
    ("a", True),
    ("a", ["b"]),
    ("a", ("b", 1.0)),
    2**63,
    -(2**63) - 1,
    ("a", 2**63),
    "\ud800",
    ("a", "\udfff"),
    Name("a"),
    Code.EWR,
    Place("EWR"),
    object(),
    str,
]


def as_bytes(key: Any) -> list[bytes]:
    """The canonical bytes of each part of a key, in order."""
    if isinstance(key, tuple):
        return [part for each in key for part in as_bytes(each)]
    if isinstance(key, int):
        return [key.to_bytes(8, "little", signed=True)]
    return [key.encode() if isinstance(key, str) else key]


@pytest.mark.parametrize(
    ("data", "seed", "expected"),
    [
        (b"", 0, 0xEF46DB3751D8E999),
        (b"a", 0, 0xD24EC4F1A98C6E5B),
        (b"abc", 0, 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0, 0xFBCEA83C8A378BF1),
        (b"xxhash", 20141025, 0xB559B98D844E0635),
    ],
)
def test_hash_written_out_is_xxh64(data: bytes, seed: int, expected: int) -> None:
    """By the vectors that others publish: what the tests below compare with stands on its own."""
    assert xxh64(data, seed) == expected


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("", -7444071767201028348),
        (b"", -7444071767201028348),
        ("a", -8582455328737087284),
        (0, -5252525462095825812),
    ],
)
def test_known_keys_keep_their_hash(key: Any, expected: int) -> None:
    """For good: the group of a key decides where its state is looked for. The numbers are Spark's `xxhash64`."""
    assert key_hash(key, SEED) == expected % 2**64


@pytest.mark.parametrize("key", sample_keys.ALL_KEYS, ids=lambda key: ascii(key)[:20])
def test_hash_is_xxh64_of_the_canonical_bytes(key: Any) -> None:
    """Parts chained by seed, by a hash that was written here from its description."""
    digest = 42
    for part in as_bytes(key):
        digest = xxh64(part, digest)
    assert key_hash(key, SEED) == digest
    signed = digest - 2**64 if digest >= 2**63 else digest
    for groups in (1, 2, 7, 128, MAX_PARALLELISM_LIMIT):
        assert key_group(key, groups) == ((signed % groups) + groups) % groups


@settings(deadline=None)
@given(KEYS, st.integers(1, MAX_PARALLELISM_LIMIT))
def test_group_lies_within_its_bounds(key: Any, groups: int) -> None:
    """0 to one below the number of groups, though half of all hashes are negative as Java reads them."""
    assert 0 <= key_group(key, groups) < groups


@settings(deadline=None)
@given(KEYS)
def test_nested_tuple_has_the_group_of_the_flat_one(key: Any) -> None:
    """As a struct in Spark: only the order of the parts counts."""

    def parts(key: Any) -> list[Any]:
        return [part for each in key for part in parts(each)] if isinstance(key, tuple) else [key]

    assert key_hash(key, SEED) == key_hash(tuple(parts(key)), SEED)


def test_groups_are_used_evenly() -> None:
    """10,000 keys of each scalar kind on 16 groups: none has less than 80 % or more than 120 % of its share."""
    for make in (str, int, lambda number: number.to_bytes(4, "big")):
        counts = [0] * 16
        for number in range(10_000):
            counts[key_group(make(number), 16)] += 1
        assert min(counts) >= 500
        assert max(counts) <= 750


@pytest.mark.parametrize("key", NOT_KEYS, ids=short_name_of)
def test_what_is_not_a_key_is_refused(key: Any) -> None:
    """Also where Python takes it for equal to one: `True == 1`, and a subclass may have another `repr`."""
    with pytest.raises(KeyTypeError):
        key_group(key, 128)


def test_numpy_scalars_are_refused() -> None:
    """They look like keys, equal keys, and hash like keys; what is stored would be something else."""
    numpy = pytest.importorskip("numpy")
    for key in (numpy.int64(1), numpy.str_("a"), numpy.bytes_(b"a"), numpy.float64(1.0), numpy.bool_(True)):
        with pytest.raises(KeyTypeError):
            key_group(key, 128)
        with pytest.raises(KeyTypeError):
            key_group(("a", key), 128)


def test_nesting_has_a_limit() -> None:
    """A key that could be logged but not read back would close the job."""
    assert key_group(nested(KEY_DEPTH_MAX), 128) == key_group("a", 128)
    for depth in (KEY_DEPTH_MAX + 1, 5000):
        with pytest.raises(KeyTypeError):
            key_group(nested(depth), 128)


TEXTS, NUMBERS = st.text(max_size=12) | st.just("\ud800"), st.integers(-(2**63) - 1, 2**63)
MANY = (
    st.lists(TEXTS, max_size=4)
    | st.lists(NUMBERS, max_size=4)
    | st.lists(TEXTS | NUMBERS | KEYS | st.sampled_from([True, 1.0, None, ()]), max_size=4)
)


@pytest.mark.parametrize("max_parallelism", [1, 7, 128])
@pytest.mark.parametrize("part", [1, 2])
@settings(max_examples=50, deadline=None)
@given(many=MANY)
@example(many=[0, 2**63, 0])
@example(many=[0, -(2**63) - 1, 0])
@example(many=[2**63 - 1, -(2**63)])
@example(many=[1, True])
def test_many_keys_are_placed_as_each_of_them(max_parallelism: int, part: int, many: list[Any]) -> None:
    """Or refused for the same reason, by an owner of all keys and by an owner of a part; so does checking them."""
    owned = OwnedKeys(KeyGroupRange(0, (max_parallelism - 1) // part), max_parallelism)
    one_by_one = outcome(lambda: list(map(owned.group_of, many)))
    assert outcome(lambda: owned.groups_of(many)) == one_by_one
    refusal = one_by_one if isinstance(one_by_one, str) else None
    assert outcome(lambda: owned.check_many(many)) == refusal

    def check_each() -> None:
        for key in many:
            owned.check(key)

    assert outcome(check_each) == refusal


def outcome(call: Callable[[], Any]) -> Any:
    """The result, or the text of the error."""
    try:
        return call()
    except (KeyTypeError, KeyGroupError) as error:
        return repr(error)


def test_numbers_in_text_are_not_placed_as_numbers() -> None:
    """Whatever stands first: numpy would take the text for the number."""
    keys = OwnedKeys(KeyGroupRange(0, 127), 128)
    for mixed in ([1, "5", b"7"], ["5", 1], [b"7", "7"], [5, ("5",)]):
        assert keys.placed(mixed).tolist() == list(map(keys.group_of, mixed))
