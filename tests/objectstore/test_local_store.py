"""What files add to the contract: atomic, durable, private, bounded, and nothing left behind."""

import asyncio
import errno
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

import statebackend as sb
from statebackend.errors import (
    InputError,
    ObjectNotFoundError,
    StoreAccessError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
    UnfitStoreError,
)
from statebackend.objectstore import LocalStore, MemoryStore, listing, local


class BodyInSteps(Sequence[bytes]):
    """A body whose reader, which is the writing thread, waits in the middle until it may go on, or fails there."""

    def __init__(self, error: Exception | None = None) -> None:
        self.reached = threading.Event()
        self.may_go_on = threading.Event()
        self._chunks = [b"first", b"second"]
        self._error = error

    def __len__(self) -> int:
        return len(self._chunks)

    def __getitem__(self, index):
        return self._chunks[index]

    def __iter__(self) -> Iterator[bytes]:
        yield self._chunks[0]
        self.reached.set()
        if self._error is not None:
            raise self._error
        self.may_go_on.wait()
        yield self._chunks[1]


def files_below(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("operation", ["put", "put_if_absent"])
async def test_a_write_syncs_the_file_then_names_it_then_syncs_the_directories(
    operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name appears only on bytes that are on disk, and is on disk itself before the write is acknowledged."""
    steps: list[tuple[str, str]] = []
    fsync, replace, link = os.fsync, os.replace, os.link

    def name_of(path: str) -> str:
        name = Path(path).name
        return "temporary" if name.endswith(".tmp") else name

    def watched_fsync(descriptor: int) -> None:
        fsync(descriptor)
        steps.append(("sync", name_of(str(Path(f"/proc/self/fd/{descriptor}").readlink()))))

    def watched(step: Callable[..., None]) -> Callable[..., None]:
        def call(source: str, target: str) -> None:
            step(source, target)
            steps.append(("name", name_of(target)))

        return call

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "replace", watched(replace))
    monkeypatch.setattr(os, "link", watched(link))
    store = LocalStore(tmp_path / "root")
    await getattr(store, operation)("inner/object", [b"x"])
    assert steps == [
        ("sync", tmp_path.name),  # holds the new root
        ("sync", "root"),  # holds the new directory
        ("sync", "temporary"),
        ("name", "object"),
        ("sync", "inner"),
    ]


async def test_a_directory_made_by_another_process_is_synced_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its maker may not have come to that yet, and our object is lost with the directory."""
    (tmp_path / "inner").mkdir()
    synced: list[str] = []
    fsync = os.fsync

    def watched_fsync(descriptor: int) -> None:
        fsync(descriptor)
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))

    monkeypatch.setattr(os, "fsync", watched_fsync)
    store = LocalStore(tmp_path)
    await store.put("inner/one", [b"x"])
    await store.put("inner/two", [b"x"])
    assert synced.count(str(tmp_path)) == 1


async def test_a_body_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    """Neither a part of the object nor a temporary file stays, and the former object is as it was."""
    store = LocalStore(tmp_path)
    await store.put("object", [b"former"])
    for write in (store.put, store.put_if_absent):
        with pytest.raises(ZeroDivisionError):
            await write("object", BodyInSteps(error=ZeroDivisionError()))
    assert files_below(tmp_path) == ["object"]
    assert await store.get("object") == b"former"


@pytest.mark.parametrize("operation", ["put", "put_if_absent"])
async def test_a_cancelled_write_ends_with_its_thread_and_leaves_no_temporary_file(
    operation: str, tmp_path: Path
) -> None:
    """The caller comes back only when the thread is done: nothing is written behind its back."""
    store = LocalStore(tmp_path)
    body = BodyInSteps()
    ended = anyio.Event()

    async def write() -> None:
        try:
            await getattr(store, operation)("object", body)
        finally:
            ended.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write)
        await anyio.to_thread.run_sync(body.reached.wait)
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await anyio.wait_all_tasks_blocked()
            had_ended, files_meanwhile = ended.is_set(), files_below(tmp_path)
            body.may_go_on.set()
    assert not had_ended
    assert len(files_meanwhile) == 1
    assert files_meanwhile != ["object"]
    assert files_below(tmp_path) == ["object"]
    assert await store.get("object") == b"firstsecond"


@pytest.mark.parametrize("names_max", [1, 3, 1000])
async def test_a_large_directory_is_listed_in_order_a_bounded_number_of_names_at_a_time(
    names_max: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read again for each so many. '-' sorts before the '/' of a directory, '0' after it."""
    monkeypatch.setattr(listing, "NAMES_MAX", names_max)
    monkeypatch.setattr(listing, "PAGE", 2)
    monkeypatch.setattr(local, "PAGE", 2)
    store = LocalStore(tmp_path)
    keys = [f"{name}{end}" for name in ("a", "b", "c") for end in ("-x", "/x", "/y-", "/y/z", "0")]
    for key in keys:
        await store.put(key, [b"x"])
    read, scandir = list[str](), os.scandir

    def watched(path: str) -> Any:
        read.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", watched)
    assert [info.key async for info in store.list("")] == sorted(keys)
    assert [info.key async for info in store.list("b/y")] == ["b/y-", "b/y/z"]
    assert read.count(f"{tmp_path}/") == {1: 9, 3: 3, 1000: 1}[names_max]


async def test_no_new_name_is_interned_by_a_job_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Python 3.12.6 what `pathlib` interns stays for ever, and each checkpoint has files of new names."""
    interned, intern = list[str](), sys.intern

    def watched(name: str) -> str:
        interned.append(name)
        return intern(name)

    settings = sb.Settings(
        job="j", primary=f"file://{tmp_path}/p", local=(f"{tmp_path}/l",), persist_delay_s=0.0, inline_bytes_max=0
    )
    async with sb.open_backend(settings) as backend:
        state = backend.value_state("n", int)
        for number in range(3):
            monkeypatch.setattr(sys, "intern", watched)
            state["k"] = number
            await backend.checkpoint(number)
        assert [name for name in interned if any(map(str.isdigit, name))] == []


async def test_listing_ignores_files_on_their_way_and_those_of_dead_writers(tmp_path: Path) -> None:
    """A temporary file is no object, whoever left it."""
    store = LocalStore(tmp_path)
    await store.put("a/object", [b"x"])
    (tmp_path / "a" / ".4711-dead-0.tmp").write_bytes(b"half")
    assert [info.key async for info in store.list("")] == ["a/object"]
    assert [info.key async for info in store.list("a/.")] == []


async def test_files_and_directories_are_for_the_owner_only(tmp_path: Path) -> None:
    """State may be private: no one else may read it, whatever the umask says."""
    former = os.umask(0)
    try:
        await LocalStore(tmp_path / "root").put("a/b", [b"x"])
    finally:
        os.umask(former)
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "root", tmp_path / "root/a", tmp_path / "root/a/b")]
    assert modes == [0o700, 0o700, 0o600]


async def test_a_body_of_more_chunks_than_one_system_call_takes_is_written_whole(tmp_path: Path) -> None:
    """Short writes and long bodies go on where they stopped."""
    chunks = [bytes([number % 251]) * (number % 7) for number in range(5000)]
    store = LocalStore(tmp_path)
    await store.put("object", chunks)
    assert await store.get("object") == b"".join(chunks)


async def test_a_directory_that_was_removed_behind_our_back_is_made_again(tmp_path: Path) -> None:
    """Somebody deletes the local copy of a running job: the next write works."""
    store = LocalStore(tmp_path / "root")
    await store.put("a/b/c", [b"x"])
    for path in ("root/a/b/c", "root/a/b", "root/a", "root"):
        (tmp_path / path).unlink() if path.endswith("c") else (tmp_path / path).rmdir()
    assert [info.key async for info in store.list("")] == []
    await store.put("a/b/c", [b"again"])
    assert await store.get("a/b/c") == b"again"


async def test_a_key_cannot_continue_an_objects_key(tmp_path: Path) -> None:
    """A file is no directory: the caller is told to choose another key, and both objects stay as they are."""
    store = LocalStore(tmp_path)
    await store.put("a", [b"file"])
    await store.put("b/c", [b"below"])
    for write in (store.put, store.put_if_absent):
        for key in ("a/b", "b"):
            with pytest.raises(InputError):
                await write(key, [b"x"])
    assert await store.get("a") == b"file"
    assert await store.get("b/c") == b"below"
    assert files_below(tmp_path) == ["a", "b/c"]


async def test_reading_around_a_file_finds_nothing(tmp_path: Path) -> None:
    """A directory is no object, and neither is what would lie below a file."""
    store = LocalStore(tmp_path)
    await store.put("a/b", [b"x"])
    for key in ("a", "a/b/c"):
        assert await store.head(key) is None
        with pytest.raises(ObjectNotFoundError):
            await store.get(key)
        await store.delete(key)
    assert [info.key async for info in store.list("a/b/")] == []
    assert await store.get("a/b") == b"x"


async def test_no_room_is_an_error_that_may_pass_and_leaves_nothing(tmp_path: Path) -> None:
    """A write the system cuts short (here by a real limit on file size) is reported and cleaned up."""
    store = LocalStore(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(StoreUnavailableError) as caught:
            await store.put("object", [b"x" * 10_000])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert isinstance(caught.value.__cause__, OSError)
    assert files_below(tmp_path) == []
    await store.put("object", [b"x" * 10_000])


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOSPC, StoreFullError),
        (errno.EDQUOT, StoreFullError),
        (errno.EIO, StoreUnavailableError),
        (errno.EMFILE, StoreUnavailableError),
        (errno.EACCES, StoreAccessError),
        (errno.EPERM, StoreAccessError),
        (errno.EROFS, StoreAccessError),
    ],
)
async def test_a_systems_error_becomes_the_error_that_says_what_to_do(
    number: int, expected: type[StoreError], tmp_path: Path
) -> None:
    """What may pass is told from what will not, with the system's own error as the cause."""
    with pytest.raises(expected) as caught:
        await LocalStore(tmp_path).put("object", BodyInSteps(error=OSError(number, os.strerror(number))))
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == number
    assert caught.value.facts["key"] == "object"
    assert files_below(tmp_path) == []


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOTSUP, errno.EPERM])
async def test_a_file_system_without_hard_links_is_unfit(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket that is mounted, mostly. That does not pass, so nobody should wait for it."""

    def link(source: str, target: str) -> None:
        raise OSError(number, os.strerror(number), source, None, target)

    monkeypatch.setattr(os, "link", link)
    store = LocalStore(tmp_path)
    with pytest.raises(UnfitStoreError, match="hard links"):
        await store.put_if_absent("object", [b"x"])
    assert files_below(tmp_path) == []
    await store.put("object", [b"x"])


async def test_a_root_that_is_a_file_refuses_writes_and_is_empty_to_readers(tmp_path: Path) -> None:
    """The wrong path in the settings does not destroy what lies there."""
    (tmp_path / "root").write_bytes(b"somebody's")
    store = LocalStore(tmp_path / "root")
    with pytest.raises(StoreAccessError):
        await store.put("object", [b"x"])
    with pytest.raises(ObjectNotFoundError):
        await store.get("object")
    assert [info.key async for info in store.list("")] == []
    assert (tmp_path / "root").read_bytes() == b"somebody's"


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="needs a file system that refuses everybody")
async def test_a_file_system_that_refuses_is_an_access_error() -> None:
    """Permission, or a read-only mount: trying again does not help."""
    with pytest.raises(StoreAccessError):
        await LocalStore(Path("/sys/kernel/statebackend")).put("object", [b"x"])


async def test_no_more_threads_than_the_bound_are_at_work(tmp_path: Path) -> None:
    """The third write waits until one of the first two is done."""
    store = LocalStore(tmp_path, io_threads_max=2)
    bodies = [BodyInSteps() for _ in range(3)]
    async with anyio.create_task_group() as tasks:
        for number, body in enumerate(bodies):
            tasks.start_soon(store.put, f"object-{number}", body)
        await anyio.wait_all_tasks_blocked()
        for body in bodies[:2]:
            await anyio.to_thread.run_sync(body.reached.wait)
        third_had_begun = bodies[2].reached.is_set()
        for body in bodies:
            body.may_go_on.set()
    assert not third_had_begun
    assert [info.key async for info in store.list("")] == ["object-0", "object-1", "object-2"]


async def test_stores_of_one_directory_share_the_bound_for_writes(tmp_path: Path) -> None:
    """256 backends in one process have threads of their own each: so many syncs at a time take the disk longer."""
    stores = [LocalStore(tmp_path, io_threads_max=1) for _ in range(2)]
    bodies = [BodyInSteps() for _ in stores]
    async with anyio.create_task_group() as tasks:
        for number, (store, body) in enumerate(zip(stores, bodies, strict=True)):
            tasks.start_soon(store.put, f"object-{number}", body)
        await anyio.wait_all_tasks_blocked()
        await anyio.to_thread.run_sync(bodies[0].reached.wait)
        second_had_begun = bodies[1].reached.is_set()
        for body in bodies:
            body.may_go_on.set()
    assert not second_had_begun
    assert [info.key async for info in stores[0].list("")] == ["object-0", "object-1"]


async def test_reads_count_against_the_same_bound(tmp_path: Path) -> None:
    """While the only thread writes, a read waits, and can be cancelled while it does."""
    store = LocalStore(tmp_path, io_threads_max=1)
    await store.put("there", [b"x"])
    body = BodyInSteps()
    got: list[bytes] = []

    async def read() -> None:
        got.append(await store.get("there"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.put, "object", body)
        await anyio.to_thread.run_sync(body.reached.wait)
        async with anyio.create_task_group() as given_up:
            given_up.start_soon(read)
            for _ in range(100):  # threads of others come and go meanwhile: with one of its own it would have read
                await anyio.to_thread.run_sync(int)
            given_up.cancel_scope.cancel()
        got_meanwhile = [*got]
        tasks.start_soon(read)
        body.may_go_on.set()
    assert got_meanwhile == []
    assert got == [b"x"]


async def test_reads_use_no_thread_of_the_loops_own_pool(tmp_path: Path) -> None:
    """That one is small, and shared with name resolution and the user's code; closing a file once went there."""

    class Refusing(ThreadPoolExecutor):
        def submit(self, fn, /, *args, **kwargs):
            raise AssertionError(f"{fn} on the loop's own pool")

    asyncio.get_running_loop().set_default_executor(Refusing())
    store = LocalStore(tmp_path)
    await store.put("a", [b"content"])
    assert (await store.get("a"), await store.get_range("a", 3, 2)) == (b"content", b"te")


async def test_a_read_that_hangs_can_be_left_behind(tmp_path: Path) -> None:
    """A pipe that nobody writes to hangs as a dead disk does. Cancelled, the call ends; the thread goes on."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    store = LocalStore(tmp_path, abandon_after_s=0.0)
    try:
        with anyio.move_on_after(0.01) as bounded:
            await store.get("pipe")
        assert bounded.cancelled_caught
    finally:
        os.close(os.open(pipe, os.O_RDWR))


async def test_a_store_whose_threads_can_be_left_behind_reads_and_fails_as_any_other(tmp_path: Path) -> None:
    """The whole, a part, beyond the end, and what is not there."""
    store = LocalStore(tmp_path, abandon_after_s=0.0)
    await store.put("key", [b"0123456789"])
    assert await store.get("key") == b"0123456789"
    assert await store.get_range("key", 3, 4) == b"3456"
    assert await store.get_range("key", 8, 9) == b"89"
    with pytest.raises(ObjectNotFoundError):
        await store.get("other")


@pytest.mark.parametrize("abandon_after_s", [None, 0.0])
async def test_of_many_objects_read_together_each_has_its_own_outcome(
    abandon_after_s: float | None, tmp_path: Path
) -> None:
    """In the order of the keys: what is there, what is not, and what is no object."""
    store = LocalStore(tmp_path, abandon_after_s=abandon_after_s)
    await store.put("a/b", [b"x" * 70_000, b"y"])
    await store.put("empty", [])
    whole, missing, directory, empty = await store.get_many(["a/b", "a/c", "a", "empty"])
    assert (whole, empty) == (b"x" * 70_000 + b"y", b"")
    assert [type(each) for each in (missing, directory)] == [ObjectNotFoundError] * 2
    with pytest.raises(InputError):
        await store.get_many(["a/b", "../b"])


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.EMLINK])
async def test_what_cannot_be_linked_is_copied(tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To another file system, on one without links, or where a file has too many of them."""

    def refuse(*_: object) -> None:
        raise OSError(number, "no link")

    source, target = LocalStore(tmp_path / "a"), LocalStore(tmp_path / "b")
    await source.put("deep/object", [b"content" * 100_000])
    assert await target.copy_from(source, "deep/object", "linked", 700_000)
    assert (tmp_path / "b" / "linked").stat().st_nlink == 2
    monkeypatch.setattr(os, "link", refuse)
    assert await target.copy_from(source, "deep/object", "copied", 700_000)
    assert (tmp_path / "b" / "copied").stat().st_nlink == 1
    assert await target.get("copied") == await source.get("deep/object")
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["copied", "linked"]


async def test_a_copy_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither an object nor a part of one; and another kind of store is copied from by its bytes."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    source, target = LocalStore(tmp_path / "a"), LocalStore(tmp_path / "b")
    await source.put("object", [b"content"])
    assert not await target.copy_from(MemoryStore(), "object", "copied", 7)
    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(StoreFullError):
        await target.copy_from(source, "object", "copied", 7)
    assert list((tmp_path / "b").iterdir()) == []
