"""A local disk that hangs for ever: opening and commits go on, and the backend can be left."""

import os
import threading
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import pytest

import statebackend as sb
from statebackend._ranges.range_owners import open_range_owners
from statebackend.objectstore import LocalStore, local_files
from tests.backend.conftest import local_segments
from tests.ranges.parts import open_run

SAFETY_NET_S = 20.0  # ends a test that would otherwise hang; no test depends on it


@pytest.mark.parametrize("io_threads_max", [1, 2, 8])
async def test_a_local_disk_that_hangs_neither_holds_up_a_commit_nor_the_end(
    io_threads_max: int, settings: sb.Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its fsync never returns. The commit is without a local copy, and the block is left while the thread hangs."""
    may_end, gave_up, really_sync = threading.Event(), threading.Event(), os.fsync

    def hang(descriptor: int) -> None:
        is_local = Path(f"/proc/self/fd/{descriptor}").readlink().is_relative_to(tmp_path / "local")
        if is_local and not may_end.wait(SAFETY_NET_S):
            gave_up.set()
        really_sync(descriptor)

    monkeypatch.setattr(os, "fsync", hang)
    hurried = msgspec.structs.replace(
        settings, secondary_grace_s=0.0, close_timeout_s=0.05, io_threads_max=io_threads_max
    )
    try:
        async with sb.open_backend(hurried) as backend:
            backend.value_state("n", int)["k"] = 1
            info = await backend.checkpoint(1)
            assert not info.local
        assert not gave_up.is_set(), "leaving has waited for the disk"
    finally:
        may_end.set()
    monkeypatch.undo()
    async with sb.open_backend(settings) as backend:
        assert dict(backend.value_state("n", int)) == {"k": 1}


@pytest.mark.parametrize("io_threads_max", [1, 2])
async def test_a_local_disk_that_hangs_takes_no_thread_from_the_primary(
    io_threads_max: int, settings: sb.Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread is not abandoned for a long time. The next checkpoint is stored on a file system meanwhile."""
    may_end, gave_up, really_sync = threading.Event(), threading.Event(), os.fsync

    def hang(descriptor: int) -> None:
        is_local = Path(f"/proc/self/fd/{descriptor}").readlink().is_relative_to(tmp_path / "local")
        if is_local and not may_end.wait(SAFETY_NET_S):
            gave_up.set()
        really_sync(descriptor)

    monkeypatch.setattr(os, "fsync", hang)
    settings = msgspec.structs.replace(
        settings,
        primary=f"file://{tmp_path / 'primary'}",
        secondary_grace_s=0.0,
        close_timeout_s=2 * SAFETY_NET_S,
        io_threads_max=io_threads_max,
    )
    async with sb.open_backend(settings) as backend:
        try:
            for checkpoint_id in (1, 2):
                backend.value_state("n", int)["k"] = checkpoint_id
                assert not (await backend.checkpoint(checkpoint_id)).local
            assert not gave_up.is_set(), "a checkpoint has waited for the disk"
        finally:
            may_end.set()


@pytest.mark.parametrize("io_threads_max", [1, 2])
async def test_a_restore_falls_back_to_the_primary_while_a_local_root_hangs(
    io_threads_max: int, settings: sb.Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first file has no local copy. The primary delivers it while the reads of all other copies hang, before any of
    them is given up.
    """
    settings = msgspec.structs.replace(settings, io_threads_max=io_threads_max, local_read_timeout_s=2 * SAFETY_NET_S)
    async with sb.open_backend(settings) as backend:
        for checkpoint_id in range(1, 5):
            backend.value_state("n", int)[f"k{checkpoint_id}"] = checkpoint_id
            assert (await backend.checkpoint(checkpoint_id)).local
    missing, *copies = local_segments(tmp_path / "local")
    missing.unlink()
    hung, may_end, gave_up = threading.Event(), threading.Event(), threading.Event()
    really_get = LocalStore.get

    def hang(path: str, *args: Any, **options: Any) -> Any:
        if Path(path) in copies:
            hung.set()
            if not may_end.wait(SAFETY_NET_S):
                gave_up.set()
            raise OSError("hung")
        return open(path, *args, **options)  # noqa: PTH123  # as the store does

    async def get(self: LocalStore, key: str) -> bytes:
        data = await really_get(self, key)
        if key == f"fleet/segments/{missing.name}":
            await anyio.to_thread.run_sync(hung.wait, SAFETY_NET_S)
            may_end.set()
        return data

    monkeypatch.setattr(local_files, "open", hang, raising=False)
    monkeypatch.setattr(LocalStore, "get", get)
    async with sb.open_backend(settings) as backend:
        assert dict(backend.value_state("n", int)) == {"k1": 1, "k2": 2, "k3": 3, "k4": 4}
        assert backend.restored is not None
        assert (backend.restored.files_local, backend.restored.files_primary) == (0, 4)
    assert not gave_up.is_set(), "the primary has waited for the disk"


@pytest.mark.parametrize("io_threads_max", [1, 2])
@pytest.mark.parametrize("call", ["access", "scandir", "stat"])
async def test_a_local_root_that_hangs_does_not_keep_a_backend_from_opening(
    call: str,
    io_threads_max: int,
    settings: sb.Settings,
    tmp_path: Path,
    *,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """While it is claimed, or cleared, or asked anything. All is read from the primary, the root gets nothing, and a
    warning names it.
    """
    async with sb.open_backend(settings) as backend:
        backend.value_state("n", int)["k"] = 1
        assert (await backend.checkpoint(1)).local

    may_end, gave_up, really = threading.Event(), threading.Event(), getattr(os, call)

    def hang(path: Any = ".", *args: Any, **options: Any) -> Any:
        if isinstance(path, int) or not Path(path).is_relative_to(tmp_path / "local"):
            return really(path, *args, **options)
        if not may_end.wait(SAFETY_NET_S):
            gave_up.set()
        raise OSError("hung")

    monkeypatch.setattr(os, call, hang)
    hurried = msgspec.structs.replace(
        settings, local_read_timeout_s=0.05, close_timeout_s=0.05, io_threads_max=io_threads_max
    )
    try:
        async with sb.open_backend(hurried) as backend:
            assert backend.restored is not None
            assert (backend.restored.files_local, backend.restored.files_primary) == (0, 1)
            backend.value_state("n", int)["k"] = 2
            assert not (await backend.checkpoint(2)).local
        assert not gave_up.is_set(), "somebody has waited for the disk"
    finally:
        may_end.set()
    assert f"a local root hangs, and is not used: root={tmp_path / 'local'}" in caplog.messages
    monkeypatch.undo()
    async with sb.open_backend(settings) as backend:
        assert dict(backend.value_state("n", int)) == {"k": 2}


async def test_a_local_root_that_begins_to_hang_does_not_hold_up_a_range(
    settings: sb.Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked through when the work on the range is done. What that has contributed comes back all the same."""
    may_end, gave_up, really = threading.Event(), threading.Event(), os.scandir

    def hang(path: Any = ".") -> Any:
        if Path(path).is_relative_to(tmp_path / "local") and not may_end.wait(SAFETY_NET_S):
            gave_up.set()
        return really(path)

    hurried = msgspec.structs.replace(settings, local_read_timeout_s=0.05, close_timeout_s=0.05)
    async with open_run(hurried, 1) as run, open_range_owners() as owners:
        await run.batch(owners, [("k", 1)])  # until the epoch has committed nothing is looked for
        monkeypatch.setattr(os, "scandir", hang)
        try:
            for number in (2, 3):
                await run.batch(owners, [("k", number)])
            assert not gave_up.is_set(), "somebody has waited for the disk"
        finally:
            may_end.set()
        monkeypatch.undo()
    async with sb.open_backend(settings, read_only=True) as backend:
        assert list(backend.list_state("rows", int)["k"]) == [1, 2, 3]
