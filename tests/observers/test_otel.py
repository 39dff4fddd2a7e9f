"""What OpenTelemetry reads is what `Metrics` keeps, and what takes long is a span."""

import importlib
import pickle
import sys
from typing import Any

import pytest

from statebackend.ids import SourceMark, StagedOutput
from statebackend.observers import Distribution, Metrics, Observers, OpenTelemetryObserver
from statebackend.testing import run_virtual
from statebackend.testing.virtual_time import VirtualClock
from tests.observers.test_metrics import commit, local_segments, settings_at

sdk = pytest.importorskip("opentelemetry.sdk", reason="the extra otel and opentelemetry-sdk")
metrics_sdk = importlib.import_module("opentelemetry.sdk.metrics")
metrics_export = importlib.import_module("opentelemetry.sdk.metrics.export")
trace_sdk = importlib.import_module("opentelemetry.sdk.trace")
trace_export = importlib.import_module("opentelemetry.sdk.trace.export")
in_memory = importlib.import_module("opentelemetry.sdk.trace.export.in_memory_span_exporter")


class Place:
    """An observer whose numbers and spans stay in memory."""

    def __init__(self, job: str = "fleet", **options: Any) -> None:
        self.reader = metrics_export.InMemoryMetricReader()
        self.exporter = in_memory.InMemorySpanExporter()
        tracers = trace_sdk.TracerProvider()
        tracers.add_span_processor(trace_export.SimpleSpanProcessor(self.exporter))
        meters = metrics_sdk.MeterProvider([self.reader])
        self.observer = OpenTelemetryObserver(job=job, meter_provider=meters, tracer_provider=tracers, **options)

    def points(self) -> dict[str, dict[str, Any]]:
        """Each instrument's data points, by the value of the label; `""` without one."""
        found: dict[str, dict[str, Any]] = {}
        for resource in self.reader.get_metrics_data().resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        facts = dict(point.attributes)
                        assert facts.pop("state_job") == self.observer.job
                        found.setdefault(metric.name, {})["".join(facts.values())] = point
        return found

    def spans(self) -> list[Any]:
        return list(self.exporter.get_finished_spans())


async def test_its_numbers_are_those_of_the_metrics(tmp_path: Any) -> None:
    """After uploads, dropped and damaged local copies, and a restore: every number that was recorded."""
    place, metrics = Place(), Metrics()
    observer = Observers(metrics, place.observer)
    await commit(settings_at(tmp_path), observer, 1, 2, 3)
    local_segments(tmp_path)[0].unlink()
    await commit(settings_at(tmp_path, local_bytes_max=1), observer, 4)
    points, seen = place.points(), 0
    for metric in Metrics.definitions():
        value = metric.read(metrics)
        if isinstance(value, Distribution):
            if value.count:
                point = points[metric.series][""]
                assert (point.count, point.sum) == (value.count, pytest.approx(value.total)), metric.name
                seen += 1
        elif isinstance(value, int | float):
            if value:
                assert points[metric.series][""].value == pytest.approx(value), metric.name
                seen += 1
        else:
            for label, count in value.items():
                assert points[metric.series][label].value == count, (metric.name, label)
                seen += 1
    assert seen > 20
    checkpoints = [span for span in place.spans() if span.name == "statebackend.checkpoint"]
    assert [span.attributes["statebackend.checkpoint_id"] for span in checkpoints] == [1, 2, 3, 4]
    (restore,) = [span for span in place.spans() if span.name == "statebackend.restore"]
    assert restore.attributes["statebackend.files_local"] == metrics.local_hits
    taken = (restore.end_time - restore.start_time) / 1e9
    assert taken == pytest.approx(metrics.restore_seconds.total, abs=1e-6)


@run_virtual
async def test_a_span_ends_now_and_took_as_long_as_it_says() -> None:
    """A failed one has the error; where nobody knows how long it took, it is a moment."""
    place = Place(clock=VirtualClock())
    output = StagedOutput(SourceMark("q", 7), 3, b"")
    place.observer.output_published(output, seconds=1.5)
    place.observer.publication_failed(output, ValueError("no table"), seconds=0.5)
    place.observer.materialized(key_groups=2, segments=1, size_bytes=10, seconds=2.0)
    place.observer.materialization_failed(OSError("full"), failures=1)
    spans = place.spans()
    assert [(span.name, (span.end_time - span.start_time) / 1e9) for span in spans] == [
        ("statebackend.publication", 1.5),
        ("statebackend.publication", 0.5),
        ("statebackend.materialization", 2.0),
        ("statebackend.materialization", 0.0),
    ]
    assert [span.status.is_ok for span in spans] == [True, False, True, False]
    assert [span.status.description for span in spans if not span.status.is_ok] == ["no table", "full"]
    assert [len(span.events) for span in spans] == [0, 1, 0, 1]
    assert {span.attributes["state_job"] for span in spans} == {"fleet"}


def test_a_pickled_copy_has_the_providers_of_its_process() -> None:
    """Those of this one cannot travel."""
    copy = pickle.loads(pickle.dumps(Place("tower").observer))
    assert (type(copy), copy.job) == (OpenTelemetryObserver, "tower")
    copy.rows_late(3)
    assert copy.late_rows == 3


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the other observers are there all the same."""
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "statebackend.observers.otel", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r"statebackend\[otel\]"):
        _ = importlib.import_module("statebackend.observers").OpenTelemetryObserver
