"""What is no key or no range is refused by every store, before anything is read or written."""

import pytest

from statebackend.abc import ObjectStore
from statebackend.errors import InputError
from statebackend.objectstore import LocalStore, MemoryStore

ILLEGAL_KEYS = [
    "",
    "/",
    "/absolute",
    "ends/",
    "a//b",
    ".",
    "..",
    "../outside",
    "a/../b",
    "a/./b",
    "a/..",
    "line\nbreak",
    "null\0byte",
    "ümlaut",
    ".being-written.tmp",
    "a/.being-written.tmp/b",
    "x" * 256,
    "/".join(["part"] * 300),
]


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, tmp_path) -> ObjectStore:
    return MemoryStore() if request.param == "memory" else LocalStore(tmp_path / "inner" / "root")


@pytest.mark.parametrize("key", ILLEGAL_KEYS)
async def test_an_illegal_key_is_refused_by_every_operation(store: ObjectStore, key: str, tmp_path) -> None:
    """No operation takes it, so no key reaches outside the root or hides among the files on their way."""
    for call in (
        store.put(key, [b"x"]),
        store.put_if_absent(key, [b"x"]),
        store.get(key),
        store.get_range(key, 0, 1),
        store.head(key),
        store.delete(key),
    ):
        with pytest.raises(InputError):
            await call
    assert [info.key async for info in store.list("")] == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("offset", "length"), [(-1, 1), (0, -1), (-5, -5)])
async def test_a_negative_range_is_refused(store: ObjectStore, offset: int, length: int) -> None:
    """A negative offset does not count from the end, and a negative length does not mean "all"."""
    await store.put("object", [b"0123456789"])
    with pytest.raises(InputError):
        await store.get_range("object", offset, length)


@pytest.mark.parametrize("key", ["x" * 255, "/".join(["y" * 255] * 4), ".tmp", "a.tmp", ".tmp.a"])
async def test_the_longest_and_the_nearly_illegal_keys_are_taken(store: ObjectStore, key: str) -> None:
    """The bounds are inclusive, and only a leading dot together with the suffix marks a file on its way."""
    if key == ".tmp":
        with pytest.raises(InputError):
            await store.put(key, [b"x"])
    else:
        await store.put(key, [b"x"])
        assert await store.get(key) == b"x"
