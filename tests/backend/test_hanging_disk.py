"""A local disk that hangs for ever: opening and commits go on, and the backend can be left."""

import os
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

import statebackend as sb

SAFETY_NET_S = 20.0  # ends a test that would otherwise hang; no test depends on it


async def test_a_local_disk_that_hangs_neither_holds_up_a_commit_nor_the_end(
    settings: sb.Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its fsync never returns. The commit is without a local copy, and the block is left while the thread hangs."""
    may_end, gave_up, really_sync = threading.Event(), threading.Event(), os.fsync

    def hang(descriptor: int) -> None:
        is_local = Path(f"/proc/self/fd/{descriptor}").readlink().is_relative_to(tmp_path / "local")
        if is_local and not may_end.wait(SAFETY_NET_S):
            gave_up.set()
        really_sync(descriptor)

    monkeypatch.setattr(os, "fsync", hang)
    hurried = msgspec.structs.replace(settings, secondary_grace_s=0.0, close_timeout_s=0.05)
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


@pytest.mark.parametrize("call", ["access", "scandir"])
async def test_a_local_root_that_hangs_does_not_keep_a_backend_from_opening(
    call: str, settings: sb.Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While it is claimed, or cleared. All is read from the primary, the root gets nothing, and a warning names it."""
    async with sb.open_backend(settings) as backend:
        backend.value_state("n", int)["k"] = 1
        assert (await backend.checkpoint(1)).local

    may_end, gave_up, really = threading.Event(), threading.Event(), getattr(os, call)

    def hang(path: Any = ".", *args: Any) -> Any:
        if isinstance(path, int) or not Path(path).is_relative_to(tmp_path / "local"):
            return really(path, *args)
        if not may_end.wait(SAFETY_NET_S):
            gave_up.set()
        raise OSError("hung")

    monkeypatch.setattr(os, call, hang)
    hurried = msgspec.structs.replace(settings, local_read_timeout_s=0.05, close_timeout_s=0.05)
    try:
        async with sb.open_backend(hurried) as backend:
            assert backend.restored is not None
            assert (backend.restored.files_local, backend.restored.files_primary) == (0, 1)
            backend.value_state("n", int)["k"] = 2
            assert not (await backend.checkpoint(2)).local
        assert not gave_up.is_set(), "somebody has waited for the disk"
    finally:
        may_end.set()
    assert f"a local root hangs, and is left alone: root={tmp_path / 'local'}" in caplog.messages
    monkeypatch.undo()
    async with sb.open_backend(settings) as backend:
        assert dict(backend.value_state("n", int)) == {"k": 2}
