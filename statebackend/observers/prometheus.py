"""The metrics as Prometheus series. Needs the extra `prometheus`."""

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

from statebackend.errors import needs_extra
from statebackend.observers.kinds import AnyMetric, Histogram
from statebackend.observers.metrics import Metrics

try:
    import prometheus_client as prometheus
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(needs_extra("PrometheusObserver", "prometheus"), name=error.name) from error

JOB_LABEL: Final = "state_job"
"""Not `job`: a Prometheus server sets that label itself on everything it scrapes."""

BUCKETS: Final[Mapping[str, tuple[float, ...]]] = {
    "bytes": tuple(float(1024 * 4**power) for power in range(11)),  # 1 KiB to 1 GiB
    "seconds": (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
    "attempts": (1.0, 2.0, 3.0, 4.0, 5.0, 10.0),
    "USD": (1e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0),
    "uploads": (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0),
}
"""Upper bounds of a histogram's buckets, by its unit."""

_Collector = prometheus.Counter | prometheus.Gauge | prometheus.Histogram
_Record = Callable[[float], Any]

# A registry accepts a name only once, and observers of several jobs share one registry.
_lock = threading.Lock()
_collectors: Final[WeakKeyDictionary[prometheus.CollectorRegistry, dict[str, _Collector]]] = WeakKeyDictionary()


class PrometheusObserver(Metrics):
    """`Metrics` that a Prometheus server can scrape: `open_backend(observer=PrometheusObserver(job="fleet"))`.

    `registry` gets the series, `prometheus_client.REGISTRY` by default. `job` is the value of their label `state_job`.
    Observers of several jobs can share a registry; the counts of two observers of the same job add up. The names are in
    `docs/reference/metrics.md`. A histogram's buckets cover all values since the start; `Metrics` stores the last 1000.

    Serve them as you like: `prometheus_client.start_http_server`, or the web server you have.
    """

    def __init__(self, registry: prometheus.CollectorRegistry | None = None, *, job: str) -> None:
        super().__init__()
        self.job: Final = job
        self._registry = registry
        self._collectors = _collectors_in(prometheus.REGISTRY if registry is None else registry, self.definitions())
        self._series: dict[tuple[str, str], _Record] = {}
        for metric in self.definitions():
            if not metric.label:
                self._series[metric.name, ""] = self._open_series(metric, "")

    def record(self, metric: AnyMetric, value: float, label: str = "") -> None:
        super().record(metric, value, label)
        series = self._series.get((metric.name, label))
        if series is None:
            series = self._series[metric.name, label] = self._open_series(metric, label)
        series(value)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), self._registry, job=self.job), ()

    def _open_series(self, metric: AnyMetric, label: str) -> _Record:
        """The function that records a value under this label. Cached, since the lookup costs more than recording."""
        series = self._collectors[metric.name].labels(self.job, *([label] if metric.label else ()))
        if isinstance(series, prometheus.Counter):
            return series.inc
        return series.set if isinstance(series, prometheus.Gauge) else series.observe


def _collectors_in(registry: prometheus.CollectorRegistry, metrics: Iterable[AnyMetric]) -> Mapping[str, _Collector]:
    """The collectors of this registry by metric name, created as needed for `metrics`."""
    with _lock:
        known = _collectors.setdefault(registry, {})
        for metric in metrics:
            if metric.name not in known:
                known[metric.name] = _collector(metric, registry)
        return known


def _collector(metric: AnyMetric, registry: prometheus.CollectorRegistry) -> _Collector:
    labels = [JOB_LABEL, *([metric.label] if metric.label else ())]
    if isinstance(metric, Histogram):
        return prometheus.Histogram(
            metric.series,
            metric.meaning,
            labels,
            registry=registry,
            buckets=BUCKETS.get(metric.unit, prometheus.Histogram.DEFAULT_BUCKETS),
        )
    kind = prometheus.Counter if metric.kind == "counter" else prometheus.Gauge
    return kind(metric.series, metric.meaning, labels, registry=registry)
