"""Ready-made observers: `Metrics` counts, two others export what it counts, `Observers` combines several.

    metrics = Metrics()
    async with sb.open_backend(settings, observer=metrics) as backend: ...
    metrics.number_of_upload_requests, metrics.upload_sizes.max, metrics.local_fallbacks

`docs/reference/metrics.md` lists every metric. Subclass `statebackend.Observer` to write an observer of your own.
"""

import importlib
from typing import TYPE_CHECKING, Any

from statebackend._observers import Observers
from statebackend.observers.kinds import Counter, Distribution, Gauge, Histogram, Level, Metric, Total
from statebackend.observers.metrics import Metrics

if TYPE_CHECKING:
    from statebackend.observers.otel import OpenTelemetryObserver as OpenTelemetryObserver
    from statebackend.observers.prometheus import PrometheusObserver as PrometheusObserver

__all__ = [
    "Counter",
    "Distribution",
    "Gauge",
    "Histogram",
    "Level",
    "Metric",
    "Metrics",
    "Observers",
    "Total",
]


def __getattr__(name: str) -> Any:
    if name == "PrometheusObserver":  # on first use: it imports prometheus_client, which is an extra
        return importlib.import_module("statebackend.observers.prometheus").PrometheusObserver
    if name == "OpenTelemetryObserver":  # the same
        return importlib.import_module("statebackend.observers.otel").OpenTelemetryObserver
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
