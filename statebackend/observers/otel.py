"""The metrics and the long operations as OpenTelemetry sees them. Needs the extra `otel`."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from statebackend.abc import CheckpointInfo, Clock, RestoreReport
from statebackend.abc.clock import SystemClock
from statebackend.errors import needs_extra
from statebackend.ids import StagedOutput
from statebackend.observers.kinds import AnyMetric
from statebackend.observers.metrics import Metrics

try:
    from opentelemetry import metrics as otel_metrics
    from opentelemetry import trace
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(needs_extra("OpenTelemetryObserver", "otel"), name=error.name) from error

JOB_ATTRIBUTE: Final = "state_job"
"""The job, in every data point and span; as in the series of `PrometheusObserver`."""
_SCOPE: Final = "statebackend"
_NS: Final = 1_000_000_000

Facts = Mapping[str, str | int | float | bool]


class OpenTelemetryObserver(Metrics):
    """`Metrics` for OpenTelemetry: `open_backend(observer=OpenTelemetryObserver(job="fleet"))`.

    Each metric is an instrument named like its Prometheus series, with the attribute `state_job` and that of its label.
    Checkpoints, restores, materializations and publications are spans too, each made when it has ended, with the time
    that it took; a failed one has the error. They are children of the span that is current then, if any.

    The providers are those of the process unless they are given. What is sent, and where to, is for them to decide: the
    SDK, its exporters and `opentelemetry-instrument`. A pickled copy has the providers of its process.
    """

    def __init__(
        self,
        *,
        job: str,
        meter_provider: otel_metrics.MeterProvider | None = None,
        tracer_provider: trace.TracerProvider | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        self.job: Final = job
        self._clock: Final[Clock] = clock or SystemClock()
        self._tracer = trace.get_tracer(_SCOPE, tracer_provider=tracer_provider)
        meter = otel_metrics.get_meter(_SCOPE, meter_provider=meter_provider)
        self._send = {metric.name: _instrument(meter, metric) for metric in self.definitions()}

    def record(self, metric: AnyMetric, value: float, label: str = "") -> None:
        super().record(metric, value, label)
        attributes = {JOB_ATTRIBUTE: self.job}
        self._send[metric.name](value, {**attributes, metric.label: label} if metric.label else attributes)

    def checkpoint_committed(self, info: CheckpointInfo) -> None:
        super().checkpoint_committed(info)
        self._span("checkpoint", info.seconds, checkpoint_id=info.checkpoint_id, primary_bytes=info.primary_bytes)

    def restored(self, report: RestoreReport) -> None:
        super().restored(report)
        self._span(
            "restore",
            report.seconds,
            checkpoint_id=report.checkpoint_id,
            files_local=report.files_local,
            files_primary=report.files_primary,
            bytes_local=report.bytes_local,
            bytes_primary=report.bytes_primary,
        )

    def materialized(self, *, key_groups: int, segments: int, size_bytes: int, seconds: float) -> None:
        super().materialized(key_groups=key_groups, segments=segments, size_bytes=size_bytes, seconds=seconds)
        self._span("materialization", seconds, key_groups=key_groups, segments=segments, size_bytes=size_bytes)

    def materialization_failed(self, error: Exception, *, failures: int) -> None:
        super().materialization_failed(error, failures=failures)
        self._span("materialization", 0.0, error, failures=failures)

    def output_published(self, output: StagedOutput, *, seconds: float) -> None:
        super().output_published(output, seconds=seconds)
        self._span("publication", seconds, batch_id=output.source.batch_id, rows=output.rows)

    def publication_failed(self, output: StagedOutput, error: BaseException, *, seconds: float) -> None:
        super().publication_failed(output, error, seconds=seconds)
        self._span("publication", seconds, error, batch_id=output.source.batch_id, rows=output.rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), job=self.job), ()

    def _span(self, name: str, seconds: float, error: BaseException | None = None, **facts: float) -> None:
        """A span that ends now. Without a duration it is a moment."""
        end_ns = int(self._clock.time() * _NS)
        attributes: Facts = {JOB_ATTRIBUTE: self.job, **{f"{_SCOPE}.{fact}": value for fact, value in facts.items()}}
        span = self._tracer.start_span(
            f"{_SCOPE}.{name}", attributes=attributes, start_time=end_ns - int(seconds * _NS)
        )
        if error is not None:
            span.record_exception(error, timestamp=end_ns)
            span.set_status(trace.StatusCode.ERROR, str(error))
        span.end(end_time=end_ns)


def _instrument(meter: otel_metrics.Meter, metric: AnyMetric) -> Callable[[float, Mapping[str, str]], None]:
    """The function that records a value of the metric."""
    unit = _UNITS.get(metric.unit, f"{{{metric.unit}}}")
    if metric.kind == "histogram":
        return meter.create_histogram(metric.series, unit, metric.meaning).record
    if metric.kind == "counter":
        return meter.create_counter(metric.series, unit, metric.meaning).add
    return meter.create_gauge(metric.series, unit, metric.meaning).set


_UNITS: Final = {"seconds": "s", "bytes": "By"}
"""Units as UCUM writes them. What is counted is in braces."""
