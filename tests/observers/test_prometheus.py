"""The metrics as Prometheus reads them are those that `Metrics` keeps."""

import importlib
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.parser import text_string_to_metric_families

import statebackend as sb
from statebackend.observers import Distribution, Metrics, Observers, PrometheusObserver
from statebackend.observers.kinds import AnyMetric
from tests.observers.test_metrics import commit, local_segments, settings_at


def scrape(registry: CollectorRegistry) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Every sample that a Prometheus server would read: name, labels, value."""
    samples: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in samples.setdefault(sample.name, {}), "a series that is there twice"
            samples[sample.name][labels] = sample.value
    return samples


def expected(metric: AnyMetric, metrics: Metrics, job: str) -> Iterator[tuple[str, tuple[tuple[str, str], ...], float]]:
    """The samples that say what `metrics` does."""
    value, own = metric.read(metrics), (("state_job", job),)
    if isinstance(value, Distribution):
        yield f"{metric.series}_count", own, value.count
        yield f"{metric.series}_sum", own, value.total
        yield f"{metric.series}_bucket", tuple(sorted((*own, ("le", "+Inf")))), value.count
    elif isinstance(value, int | float):
        yield metric.series, own, value
    else:
        for label, count in value.items():
            yield metric.series, tuple(sorted((*own, (metric.label, label)))), count


def check_equal(registry: CollectorRegistry, metrics: Metrics, job: str) -> None:
    samples = scrape(registry)
    for metric in Metrics.definitions():
        for name, labels, value in expected(metric, metrics, job):
            assert samples[name][labels] == pytest.approx(value), (name, labels)


async def test_a_scrape_says_what_the_metrics_say(tmp_path: Path) -> None:
    """After uploads, dropped and damaged local copies, and a restore: every number, and no number twice."""
    registry, metrics = CollectorRegistry(), Metrics()
    observer = Observers(metrics, PrometheusObserver(registry, job="fleet"))
    await commit(settings_at(tmp_path), observer, 1, 2, 3)
    local_segments(tmp_path)[0].unlink()
    await commit(settings_at(tmp_path, local_bytes_max=1), observer, 4)
    assert metrics.local_fallbacks
    assert metrics.local_copies_dropped
    check_equal(registry, metrics, "fleet")


def test_a_value_falls_into_its_bucket() -> None:
    """The bounds of a bucket are in the unit of the metric."""
    registry = CollectorRegistry()
    PrometheusObserver(registry, job="fleet").waited_for_room(0.07)
    buckets = scrape(registry)["statebackend_room_wait_seconds_bucket"]
    counts = {dict(labels)["le"]: value for labels, value in buckets.items()}
    assert (counts["0.05"], counts["0.1"]) == (0, 1)


def test_two_jobs_share_a_registry() -> None:
    """Each has its own series; and two observers of the same job add up."""
    registry = CollectorRegistry()
    fleet, tower = PrometheusObserver(registry, job="fleet"), PrometheusObserver(registry, job="tower")
    fleet.primary_requested({"put": 2}, usd=1e-5)
    tower.primary_requested({"put": 3}, usd=0.0)
    check_equal(registry, fleet, "fleet")
    check_equal(registry, tower, "tower")
    PrometheusObserver(registry, job="fleet").primary_requested({"put": 5}, usd=0.25)
    series = scrape(registry)["statebackend_primary_requests_total"]
    assert series == {
        (("kind", "put"), ("state_job", "fleet")): 7,
        (("kind", "put"), ("state_job", "tower")): 3,
    }


def test_what_has_not_happened_yet_is_zero() -> None:
    """A rate over a series that appears with its first event would miss that event."""
    registry = CollectorRegistry()
    observer = PrometheusObserver(registry, job="fleet")
    unlabelled = [each for each in Metrics.definitions() if not each.label]
    assert set(scrape(registry)) >= {name for each in unlabelled for name, _, _ in expected(each, observer, "fleet")}
    check_equal(registry, observer, "fleet")


def test_no_label_is_looked_up_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking a series up costs four times what counting does: it is kept."""
    looked_up: list[tuple[object, ...]] = []
    labels = MetricWrapperBase.labels

    def counting(metric: MetricWrapperBase, *values: object) -> MetricWrapperBase:
        looked_up.append(values)
        return labels(metric, *values)

    monkeypatch.setattr(MetricWrapperBase, "labels", counting)
    observer = PrometheusObserver(CollectorRegistry(), job="fleet")
    at_first = len(looked_up)
    for number in range(10):
        observer.queue_changed(number)
        observer.waited_for_room(number)
        observer.local_copy_dropped("segment", "disk full")
        observer.primary_requested({"put": 1, "get": 1}, usd=0.0)
    assert looked_up[at_first:] == [("fleet", "disk full"), ("fleet", "put"), ("fleet", "get")]


def test_names_in_prometheus_say_unit_and_kind() -> None:
    """As its own naming rules want it, once each, and never a unit twice."""
    names = {each.name: each.series for each in Metrics.definitions()}
    assert names["number_of_upload_requests"] == "statebackend_number_of_upload_requests_total"
    assert names["upload_sizes"] == "statebackend_upload_sizes_bytes"
    assert names["upload_latencies_seconds"] == "statebackend_upload_latencies_seconds"
    assert names["in_flight_bytes"] == "statebackend_in_flight_bytes"
    assert names["restored_bytes"] == "statebackend_restored_bytes_total"
    assert len(set(names.values())) == len(names)


def test_it_pickles_with_its_job_and_without_its_numbers() -> None:
    """For the default registry; another one cannot be sent anywhere."""
    copy = pickle.loads(pickle.dumps(PrometheusObserver(job="pickled")))
    assert (type(copy), copy.job, copy.number_of_upload_requests) == (PrometheusObserver, "pickled", 0)
    with pytest.raises(TypeError):
        pickle.dumps(PrometheusObserver(CollectorRegistry(), job="pickled"))


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is the claim: what to install. The rest of the room works without."""
    observers = importlib.import_module("statebackend.observers")
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "statebackend.observers.prometheus")
    with pytest.raises(ModuleNotFoundError, match=r"statebackend\[prometheus\]"):
        _ = observers.PrometheusObserver
    assert isinstance(observers.Metrics(), sb.Observer)
