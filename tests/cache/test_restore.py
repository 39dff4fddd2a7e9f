"""Restoring through a download cache: as many downloads as there are files, however many backends restore."""

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import pytest

import statebackend as sb
from statebackend._tables.key_groups import key_group
from statebackend.errors import SettingsError, StoreUnavailableError
from statebackend.objectstore import MemoryStore
from statebackend.observers import Metrics
from statebackend.testing import Fail, FaultyStore, Hold, run_virtual
from statebackend.testing.virtual_time import VirtualClock, settle
from tests.cache.caches import files_below, segment_below, settings_of

FILES = 16
OWNERS = 8
KEYS = 512


@asynccontextmanager
async def written(parent: Path) -> AsyncGenerator[tuple[sb.Settings, FaultyStore]]:
    """A job of 16 files, each of which has changes of every owner to be."""
    settings = settings_of(persist_delay_s=0.0, inline_bytes_max=0, cache_dir=str(parent / "cache"))
    store = FaultyStore(MemoryStore())
    async with sb.open_backend(settings, store=store) as backend:
        numbers = backend.value_state("n", int)
        for checkpoint in range(FILES):
            numbers.update({key: key + checkpoint for key in range(KEYS)})
            await backend.checkpoint(checkpoint)
    store.calls.clear()
    yield settings, store


def ranges() -> list[sb.owners.KeyGroupRange]:
    return [sb.owners.KeyGroupRange(first, first + 128 // OWNERS - 1) for first in range(0, 128, 128 // OWNERS)]


def downloads(store: FaultyStore) -> Counter[str]:
    """Requests for each segment, of whatever kind."""
    return Counter(key for _, key in store.calls if "segments/" in key)


async def restore_all(settings: sb.Settings, store: FaultyStore, cache: sb.owners.DownloadCache) -> dict[sb.Key, int]:
    """Every owner opens its range at the same time; what they have, together."""
    found: dict[sb.Key, int] = {}

    async def restore(owned: sb.owners.KeyGroupRange) -> None:
        async with sb.open_backend(settings, store=store, cache=cache, key_groups=owned) as backend:
            part = dict(backend.value_state("n", int))
            assert found.keys().isdisjoint(part)
            found.update(part)

    async with anyio.create_task_group() as tasks:
        for owned in ranges():
            tasks.start_soon(restore, owned)
    return found


async def test_eight_readers_of_the_same_sixteen_files_make_sixteen_downloads(tmp_path: Path) -> None:
    """One request per file, and the state is right. And afterwards, while it is kept, none at all."""
    async with written(tmp_path) as (settings, store):
        metrics = Metrics()
        async with sb.owners.open_download_cache(settings, store=store, observer=metrics) as cache:
            for _ in range(2):
                assert await restore_all(settings, store, cache) == {key: key + FILES - 1 for key in range(KEYS)}
                requests = downloads(store)
                assert len(requests) == FILES
                assert set(requests.values()) == {1}
        assert metrics.cache_downloads == metrics.primary_requests["get"] == FILES
        assert metrics.cache_hits == (2 * OWNERS - 1) * FILES
        assert files_below(tmp_path) == []


async def test_without_a_cache_each_of_them_downloads_for_itself(tmp_path: Path) -> None:
    """The purpose of the cache."""
    async with written(tmp_path) as (settings, store):
        for owned in ranges():
            async with sb.open_backend(settings, store=store, key_groups=owned):
                pass
        assert set(downloads(store).values()) == {OWNERS}


async def test_of_a_shared_segment_the_whole_is_downloaded_once(tmp_path: Path) -> None:
    """Without a cache each owner fetches its own part by ranged reads; with one the others' parts come along."""
    settings = settings_of(cache_dir=str(tmp_path), compression="none", preemptive_persist_threshold_bytes=4000)
    store = FaultyStore(MemoryStore())
    async with sb.open_backend(settings, store=store) as backend:
        texts = backend.value_state("n", str)
        for key in sorted(range(1000), key=lambda key: key_group(key, 128)):  # so that change sets differ in groups
            texts[key] = "x" * 100
        await backend.checkpoint(1)
    store.calls.clear()
    async with sb.owners.open_download_cache(settings, store=store) as cache:
        for owned in ranges():
            async with sb.open_backend(settings, store=store, cache=cache, key_groups=owned) as backend:
                assert len(backend.value_state("n", str)) > 0
    assert {operation for operation, key in store.calls if "segments/" in key} == {"get"}
    assert set(downloads(store).values()) == {1}


@run_virtual
async def test_a_download_that_fails_fails_who_waited_and_the_next_open_has_it(tmp_path: Path) -> None:
    """Two restores share the failure, as they share the download; a third one succeeds."""
    async with written(tmp_path) as (settings, store):
        hold, fail = Hold(operation="get", key="*segments/*", nth=1), Fail(operation="get", key="*segments/*", nth=1)
        store.plan += [hold, fail]
        async with sb.owners.open_download_cache(settings, store=store, clock=VirtualClock()) as cache:

            async def restore() -> None:
                with pytest.raises(StoreUnavailableError):
                    async with sb.open_backend(settings, store=store, cache=cache):
                        pass

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(restore)
                tasks.start_soon(restore)
                await settle()  # also where one of them waits for a thread
                hold.release()
            assert len(await restore_all(settings, store, cache)) == KEYS


async def test_a_bad_local_copy_is_repaired_from_the_cached_file(tmp_path: Path) -> None:
    """It is the primary's file to the byte; two owners of a job read it once and each repairs its own disk."""
    settings = settings_of(
        persist_delay_s=0.0,
        inline_bytes_max=0,
        primary=f"file://{tmp_path}/primary",
        local=(f"{tmp_path}/one",),
        cache_dir=f"{tmp_path}/cache",
        secondary_grace_s=60.0,  # a slow machine must not cost the local copy
    )
    async with sb.open_backend(settings) as backend:
        backend.value_state("n", int)["k"] = 1
        await backend.checkpoint(1)
    primary, copy = segment_below(tmp_path / "primary"), segment_below(tmp_path / "one")
    content = copy.read_bytes()
    copy.write_bytes(b"damaged")
    async with sb.owners.open_download_cache(settings) as cache:
        for root in ("one", "two"):
            elsewhere = msgspec.structs.replace(settings, local=(f"{tmp_path}/{root}",))
            async with sb.open_backend(elsewhere, cache=cache) as backend:
                assert backend.restored is not None
                assert [fallback.repaired for fallback in backend.restored.fallbacks] == [True]
            assert segment_below(tmp_path / root).read_bytes() == content
            primary.unlink(missing_ok=True)  # the second one finds it in the cache only


async def test_the_cache_of_another_job_is_refused(tmp_path: Path) -> None:
    """Keys are relative to the job, so its files would be taken for ours."""
    settings = settings_of(cache_dir=str(tmp_path))
    async with sb.owners.open_download_cache(settings, store=MemoryStore()) as cache:
        with pytest.raises(SettingsError):
            async with sb.open_backend(msgspec.structs.replace(settings, job="other"), cache=cache):
                pass
