"""The page on the metrics: `python -m statebackend.observers.reference > docs/reference/metrics.md`."""

import sys
from typing import Final

from statebackend.observers.kinds import KEPT_MAX, LABELS_MAX, OTHER, AnyMetric
from statebackend.observers.metrics import Metrics

_PAGE: Final = """# Metrics

What a backend does is told to an `Observer`, and `statebackend.observers` has three: `Metrics` keeps numbers in memory,
to be read from any thread; `PrometheusObserver` (the extra `prometheus`) does the same and lets Prometheus read them;
`Observers` is several as one. None of them can make the backend fail.

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

- A **counter** only grows and reads as an `int`, or as a `float` where its unit is USD; one with a label reads as a
  mapping from label to `int`. At most {labels_max} labels are told apart, and what comes after them is counted as
  `{other}`.
- A **gauge** goes up and down and reads as an `int`, or as a `float` where its unit is USD or seconds.
- A **histogram** reads as a `Distribution`: `count` and `total` of everything since the start, and the last {kept_max}
  values with their `min`, `max`, `mean` and `quantile(fraction)`. In Prometheus it has buckets, over everything since
  the start.
- Every Prometheus series has the label `state_job`.
- Numbers begin at 0 when the observer is made, and go on over all backends that it is given to, one after the other.

The first eight are Flink's changelog storage metrics, with Flink's meanings.

| Name | Kind | Unit | Meaning | In Prometheus |
| --- | --- | --- | --- | --- |
{rows}

This page is made from the definitions in `statebackend/observers/metrics.py`, by
`python -m statebackend.observers.reference`.
"""


def reference_page() -> str:
    """`docs/reference/metrics.md`."""
    rows = "\n".join(map(_row, Metrics.definitions()))
    return _PAGE.format(rows=rows, kept_max=KEPT_MAX, labels_max=LABELS_MAX, other=OTHER)


def _row(metric: AnyMetric) -> str:
    kind = f"{metric.kind} by {metric.label}" if metric.label else metric.kind
    return f"| `{metric.name}` | {kind} | {metric.unit} | {metric.meaning} | `{metric.series}` |"


if __name__ == "__main__":
    sys.stdout.write(reference_page())
