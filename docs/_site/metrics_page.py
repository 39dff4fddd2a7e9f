"""Generates the page on the metrics: `python docs/_site/metrics_page.py > docs/reference/metrics.md`."""

import sys
from typing import Final

from statebackend.observers.kinds import LABELS_MAX, OTHER, VALUES_MAX, AnyMetric
from statebackend.observers.metrics import Metrics

_PAGE: Final = """# Metrics

A backend reports its events to an `Observer`. `statebackend.observers` has four: `Metrics` counts in memory and can be
read from any thread; `PrometheusObserver` (the extra `prometheus`) and `OpenTelemetryObserver` (the extra `otel`) also
export the numbers; `Observers` combines several observers. [Watch a job](../how-to/watch.md) shows
them with a sink. None of them can make the backend fail.

```python
import asyncio

import statebackend as sb
from statebackend.observers import Metrics, Observers, PrometheusObserver


async def main() -> None:
    metrics = Metrics()
    settings = sb.Settings(job="fleet", primary="memory://metrics")
    observer = Observers(metrics, PrometheusObserver(job="fleet"))
    async with sb.open_backend(settings, observer=observer) as backend:
        backend.value_state("legs", int)["N14228"] = 1
        await backend.checkpoint(1)
    assert metrics.number_of_upload_requests == 0  # so small a checkpoint travels in its commit
    assert metrics.checkpoint_bytes.max < 1000
    assert metrics.primary_requests["put_if_absent"] == 2  # a claim and a commit
    assert 0 < metrics.checkpoint_usd.max <= metrics.primary_usd < 0.001


asyncio.run(main())
```

- A **counter** only grows. It reads as an `int`, or as a `float` if its unit is USD; with a label it reads as a mapping
  from label to `int`. At most {labels_max} labels are counted separately, further ones as `{other}`.
- A **gauge** goes up and down. It reads as an `int`, or as a `float` if its unit is USD or seconds.
- A **histogram** reads as a `Distribution`: `count` and `total` of all values so far, and the last {values_max}
  values with their `min`, `max`, `mean` and `quantile(fraction)`. Its Prometheus buckets cover all values since the
  start.
- Every Prometheus series has the label `state_job`. OpenTelemetry's instruments have the same names.
- Numbers start at 0 when the observer is made, and continue across the backends it is passed to, one after the other.

The first eight are Flink's changelog storage metrics, with Flink's meanings.

| Name | Kind | Unit | Meaning | In Prometheus |
| --- | --- | --- | --- | --- |
{rows}

This page is generated from the definitions in `statebackend/observers/metrics.py`, by
`python docs/_site/metrics_page.py`.
"""


def reference_page() -> str:
    """`docs/reference/metrics.md`."""
    rows = "\n".join(map(_row, Metrics.definitions()))
    return _PAGE.format(rows=rows, values_max=VALUES_MAX, labels_max=LABELS_MAX, other=OTHER)


def _row(metric: AnyMetric) -> str:
    kind = f"{metric.kind} by {metric.label}" if metric.label else metric.kind
    return f"| `{metric.name}` | {kind} | {metric.unit} | {metric.meaning} | `{metric.series}` |"


if __name__ == "__main__":
    sys.stdout.write(reference_page())
