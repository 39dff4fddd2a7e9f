"""The Grafana dashboard shows metrics that exist, by labels that they have."""

import json
import re
from pathlib import Path
from typing import Any

from statebackend.observers import Histogram, Metrics

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana" / "statebackend.json"
NAME = re.compile(r"\bstatebackend_\w+")


def known() -> dict[str, set[str]]:
    """Every series that a Prometheus has of the metrics, with its labels."""
    found: dict[str, set[str]] = {}
    for metric in Metrics.definitions():
        labels = {"state_job", metric.label} - {""}
        if isinstance(metric, Histogram):
            found |= {f"{metric.series}_{part}": labels for part in ("sum", "count")}
            found[f"{metric.series}_bucket"] = labels | {"le"}
        else:
            found[metric.series] = labels
    return found


def queries() -> list[tuple[str, str, str]]:
    """The title of each panel, its queries, and what names a line."""
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return [
        (panel["title"], each["expr"], each["legendFormat"])
        for panel in dashboard["panels"]
        for each in panel["targets"]
    ]


def test_every_series_it_asks_for_exists_with_the_labels_it_groups_by() -> None:
    """A name that is gone would be an empty chart, which looks like a job at rest."""
    series = known()
    asked = queries()
    assert len({title for title, _, _ in asked}) >= 12
    for title, query, legend in asked:
        names = set(NAME.findall(query))
        assert names, title
        assert names <= series.keys(), title
        grouped = {label.strip() for found in re.findall(r"by \(([^)]*)\)", query) for label in found.split(",")}
        labels = set[str]().union(*(series[name] for name in names))
        assert grouped <= labels, title
        assert set(re.findall(r"{{(\w+)}}", legend)) <= grouped, title


def test_what_only_grows_is_shown_as_a_rate() -> None:
    """And what does not, is not. Each query is of the job that is chosen."""
    for title, query, _ in queries():
        for name in NAME.findall(query):
            is_counter = name.endswith(("_total", "_sum", "_count", "_bucket"))
            assert bool(re.search(rf"(rate|increase)\({name}{{", query)) == is_counter, title
        assert query.count('state_job=~"$job"') == len(NAME.findall(query)), title


def test_it_stands_alone() -> None:
    """It is told its Prometheus when it is imported, and its panels do not lie upon each other."""
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    assert {each["name"] for each in dashboard["templating"]["list"]} == {"source", "job"}
    assert {panel["datasource"]["uid"] for panel in dashboard["panels"]} == {"${source}"}
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in dashboard["panels"]]
    assert len(set(places)) == len(places) == len({panel["id"] for panel in dashboard["panels"]})
