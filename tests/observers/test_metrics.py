"""Numbers in memory: how they are kept, and that those of a real backend are right."""

import math
import pickle
import threading
import time
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

import statebackend as sb
from statebackend._codec.commit import Commit, decode_entry
from statebackend.observers import Distribution, Histogram, Metrics, PrometheusObserver
from statebackend.observers.kinds import LABELS_MAX, OTHER, VALUES_MAX
from statebackend.testing import Fail, FaultyUploader, run_virtual
from statebackend.testing.virtual_time import VirtualClock
from statebackend.uploaders import PrimaryUploader


def settings_at(root: Path, **changed: object) -> sb.Settings:
    plain = {
        "job": "fleet",
        "primary": f"file://{root}/primary",
        "local": (f"{root}/local",),
        "persist_delay_s": 0,
        "inline_bytes_max": 0,
        "upload.timeout_s": 0,  # a slow machine must cost neither another attempt nor a local copy
        "secondary_grace_s": 60,
    }
    return sb.Settings.from_mapping(plain | changed)


def local_segments(root: Path) -> list[Path]:
    return sorted((root / "local").rglob("segments/*"))


async def commit(settings: sb.Settings, observer: sb.Observer, *checkpoint_ids: int) -> list[sb.CheckpointInfo]:
    """One change and one checkpoint for each id."""
    async with sb.open_backend(settings, observer=observer) as backend:
        state = backend.value_state("n", int)
        infos: list[sb.CheckpointInfo] = []
        for checkpoint_id in checkpoint_ids:
            state[f"key {checkpoint_id}"] = checkpoint_id
            infos.append(await backend.checkpoint(checkpoint_id))
        return infos


# ---------------------------------------------------------------------------------------------------- how they are kept


def test_a_histogram_keeps_the_last_thousand_values() -> None:
    """Section 4. Count and total are those of all values."""
    metrics = Metrics()
    for value in range(VALUES_MAX + 500):
        metrics.waited_for_room(value)
    waits = metrics.room_wait_seconds
    assert waits.last == tuple(range(500, VALUES_MAX + 500))
    assert (waits.count, waits.total) == (VALUES_MAX + 500, sum(range(VALUES_MAX + 500)))
    assert (waits.min, waits.max, waits.mean) == (500, 1499, 999.5)


def test_quantiles_are_values_that_were_recorded() -> None:
    """Of four values, the median is the second: half of them do not exceed it."""
    values = Distribution(count=4, total=100, last=(40, 10, 30, 20))
    assert [values.quantile(fraction) for fraction in (0, 0.25, 0.5, 0.51, 0.99, 1)] == [10, 10, 20, 30, 40, 40]


def test_nothing_recorded_reads_as_nothing() -> None:
    """Zero, or not a number where zero would be a claim."""
    metrics = Metrics()
    assert metrics.number_of_upload_requests == metrics.upload_queue_size == 0
    assert metrics.local_fallbacks == {}
    assert metrics.local_fallbacks["missing"] == 0
    assert metrics.upload_sizes == Distribution()
    for value in (metrics.upload_sizes.min, metrics.upload_sizes.mean, metrics.upload_sizes.quantile(0.5)):
        assert math.isnan(value)


def test_reasons_are_told_apart_without_their_facts_and_up_to_a_bound() -> None:
    """Promise 7: a number for each file that was ever damaged would grow for ever."""
    metrics = Metrics()
    for number in range(LABELS_MAX + 30):
        metrics.local_copy_dropped(f"segment {number}", f"checksum differs (object='segment {number}')")
    assert metrics.local_copies_dropped == {"checksum differs": LABELS_MAX + 30}
    for number in range(LABELS_MAX + 30):
        metrics.local_copy_dropped("segment", f"reason {number}")
        metrics.local_copy_dropped("segment", "reason 0")
    assert len(metrics.local_copies_dropped) == LABELS_MAX
    assert metrics.local_copies_dropped["reason 0"] == LABELS_MAX + 31
    assert metrics.local_copies_dropped[OTHER] == 30 + 2
    assert sum(metrics.local_copies_dropped.values()) == 3 * (LABELS_MAX + 30)


def test_what_was_read_does_not_change() -> None:
    """A reader has a copy: the backend goes on counting, and nobody can count for it."""
    metrics = Metrics()
    metrics.primary_requested({"put": 1}, usd=0.0)
    requests, snapshot = metrics.primary_requests, metrics.snapshot()
    metrics.primary_requested({"put": 1}, usd=0.0)
    assert requests == snapshot["primary_requests"] == {"put": 1}
    assert metrics.primary_requests == {"put": 2}
    assert list(snapshot) == [each.name for each in Metrics.definitions()]


def test_several_threads_lose_nothing() -> None:
    """Each number is whole, whoever reads and writes. These values let other threads run while they are used."""

    class Yielding(int):
        def __int__(self) -> int:
            time.sleep(0)
            return 1

    metrics = Metrics()

    def count() -> None:
        for _ in range(200):
            metrics.primary_requested({"put": Yielding(1)}, usd=0.0)
            assert metrics.snapshot()

    threads = [threading.Thread(target=count) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert metrics.primary_requests == {"put": 600}


def test_metrics_pickle_without_their_numbers() -> None:
    """A sink that Spark Connect sends elsewhere takes its observer along; what is counted there is counted there."""
    metrics = Metrics()
    metrics.queue_changed(3)
    copy = pickle.loads(pickle.dumps(metrics))
    assert copy.upload_queue_size == 0
    copy.queue_changed(1)
    assert metrics.upload_queue_size == 3


def test_numbers_of_one_s_own_stand_beside_ours() -> None:
    """A subclass defines more of them in the same words, and a subclass of the Prometheus one has them scraped."""

    class Fleet(PrometheusObserver):
        changes = Histogram("Changes in a checkpoint.", unit="changes")

        def checkpoint_committed(self, info: sb.CheckpointInfo) -> None:
            super().checkpoint_committed(info)
            self.record(Fleet.changes, info.changes)

    registry = CollectorRegistry()
    PrometheusObserver(registry, job="other")
    fleet = Fleet(registry, job="fleet")
    fleet.checkpoint_committed(sb.CheckpointInfo(1, 0, 7, 100, 100, 2, 0.5, local=True))
    assert [each.name for each in Fleet.definitions()] == [*(each.name for each in Metrics.definitions()), "changes"]
    assert fleet.changes.last == (7,)
    assert fleet.checkpoint_bytes.last == (100,)
    assert registry.get_sample_value("statebackend_changes_sum", {"state_job": "fleet"}) == 7


# ---------------------------------------------------------------------------------------------------- of a real backend


async def test_checkpoints_and_their_bytes(tmp_path: Path) -> None:
    """What the callers were told, added up; and the segments are on the disk in that size."""
    metrics = Metrics()
    infos = await commit(settings_at(tmp_path), metrics, 1, 2, 3)
    assert metrics.checkpoints == 3
    assert metrics.checkpoint_bytes.last == tuple(info.primary_bytes for info in infos)
    assert metrics.checkpoint_seconds.last == tuple(info.seconds for info in infos)
    stored = sum(path.stat().st_size for path in local_segments(tmp_path))
    assert metrics.uploaded_bytes == {"primary": stored, "local": stored}
    assert metrics.number_of_upload_requests == metrics.upload_sizes.count == 3
    assert (metrics.in_flight_bytes, metrics.upload_queue_size, metrics.restores) == (0, 0, 0)


async def test_a_restore_counts_hits_and_misses_by_reason(tmp_path: Path) -> None:
    """Of three local copies one is whole, one is gone and one is damaged. Both are written anew, and hit then."""
    settings, metrics = settings_at(tmp_path), Metrics()
    await commit(settings, sb.Observer(), 1, 2, 3)
    gone, damaged, whole = local_segments(tmp_path)
    size_bytes = {path.name: path.stat().st_size for path in (gone, damaged, whole)}
    gone.unlink()
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    await commit(settings, metrics)
    assert (metrics.restores, metrics.local_hits, metrics.local_misses, metrics.local_repairs) == (1, 1, 2, 2)
    assert metrics.local_fallbacks == {"missing": 1, "segment checksum differs": 1}
    assert metrics.restored_bytes == {
        "local": size_bytes[whole.name],
        "primary": size_bytes[gone.name] + size_bytes[damaged.name],
    }
    assert metrics.restore_seconds.count == 1
    await commit(settings, metrics)
    assert (metrics.restores, metrics.local_hits, metrics.local_misses) == (2, 4, 2)
    assert sum(metrics.local_fallbacks.values()) == metrics.local_misses


async def test_without_a_local_copy_there_is_nothing_to_miss(tmp_path: Path) -> None:
    """Neither hit nor miss: nobody looked."""
    settings, metrics = settings_at(tmp_path, local=()), Metrics()
    await commit(settings, metrics, 1)
    await commit(settings, metrics)
    assert (metrics.local_hits, metrics.local_misses, metrics.restores) == (0, 0, 1)
    assert metrics.restored_bytes == {"local": 0, "primary": metrics.uploaded_bytes["primary"]}


@run_virtual
async def test_a_dropped_local_copy_is_counted_by_reason(tmp_path: Path) -> None:
    """The primary has it all: uploads go on, and the primary's bytes are counted alone."""
    settings, metrics = settings_at(tmp_path, local_bytes_max=1), Metrics()
    infos = await commit(settings, metrics, 1, 2)
    ((reason, count),) = metrics.local_copies_dropped.items()
    assert "full" in reason
    assert count == 4  # two segments and two commits
    assert metrics.uploaded_bytes == {"primary": sum(metrics.checkpoint_bytes.last) - _commits(tmp_path)}
    assert not any(info.local for info in infos)


@run_virtual
async def test_failures_of_a_store_are_seen_through_the_backend(tmp_path: Path) -> None:
    """Two uploads of which each fails once: four requests, two failures, and the second attempt won."""
    metrics, plan = Metrics(), [Fail(operation="upload", nth=1), Fail(operation="upload", nth=3)]
    async with sb.open_backend(
        settings_at(tmp_path, local=(), upload={"retry_delay_s": 2}),
        uploader=lambda primary, _: FaultyUploader(PrimaryUploader(primary), plan),
        observer=metrics,
        clock=VirtualClock(),
    ) as backend:
        for checkpoint_id in (1, 2):
            backend.value_state("n", int)["k"] = checkpoint_id
            await backend.checkpoint(checkpoint_id)
    assert (metrics.number_of_upload_requests, metrics.number_of_upload_failures) == (4, 2)
    assert metrics.attempts_per_upload.last == metrics.total_attempts_per_upload.last == (2, 2)
    assert metrics.checkpoint_seconds.last == pytest.approx((2, 2))


def _commits(root: Path) -> int:
    """Bytes of the commit objects."""
    files = (path.read_bytes() for path in (root / "primary").rglob("commits/*") if path.name.isdigit())
    return sum(len(data) for data in files if isinstance(decode_entry(data, "", job="fleet"), Commit))


@pytest.mark.parametrize(("delivered", "after", "missed"), [(2, 1, 0), (3, 1, 1), (4, 1, 2), (1, -1, 1), (9, 0, 8)])
def test_the_batches_between_two_are_missed(delivered: int, after: int, missed: int) -> None:
    """Neither the one that was delivered nor the one that the state has."""
    metrics = Metrics()
    metrics.batches_missed(sb.SourceMark("query", delivered), after=after)
    assert metrics.missed_batches == missed
