"""The Grafana dashboard shows metrics that exist, by labels that they have."""

import json
import re
from pathlib import Path
from typing import Any

from statebackend.observers import Histogram, Metrics

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana" / "statebackend.json"
NAME = re.compile(r"\bstatebackend_\w+")
PANELS: list[dict[str, Any]] = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]


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
    return [(panel["title"], each["expr"], each["legendFormat"]) for panel in PANELS for each in panel["targets"]]


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


def unit_of(panel: dict[str, Any], query: str) -> str:
    """The unit in which Grafana shows a query of a panel: that of the panel, unless an override names the query."""
    config = panel["fieldConfig"]
    for override in config["overrides"]:
        if override["matcher"] == {"id": "byFrameRefID", "options": query}:
            return next(str(each["value"]) for each in override["properties"] if each["id"] == "unit")
    return str(config["defaults"]["unit"])


def expected_units(expr: str) -> set[str]:
    """The units that fit a query, in Grafana's words: by what the metric counts, and per second for a rate."""
    units = {metric.series: metric.unit for metric in Metrics.definitions()}
    counted = {
        units[re.sub(r"_(sum|count|bucket)$", "", name) if name not in units else name] for name in NAME.findall(expr)
    }
    if counted == {"seconds"}:
        return {"s"}
    if counted == {"USD"}:
        return {"currencyUSD"}
    is_rate = "rate(" in expr and "histogram_quantile" not in expr and "/" not in expr
    if counted == {"bytes"}:
        return {"Bps" if is_rate else "bytes"}
    return {"ops", "reqps"} if is_rate else {"short"}


def test_every_query_is_shown_in_its_unit() -> None:
    """Seconds read as bytes, or a rate as a total, would be a chart that lies."""
    for panel in PANELS:
        for each in panel["targets"]:
            assert unit_of(panel, each["refId"]) in expected_units(each["expr"]), (panel["title"], each["refId"])


def test_panels_have_what_grafana_needs_and_a_place_of_their_own() -> None:
    """A title, a kind, queries with names of their own, and a rectangle within 24 columns that no other one touches."""
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        assert panel["type"] == "timeseries", panel["title"]
        names = [each["refId"] for each in panel["targets"]]
        assert names == sorted(set(names)), panel["title"]
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert cells, panel["title"]
        assert max(x for x, _ in cells) < 24, panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells


def test_it_stands_alone() -> None:
    """It is told its Prometheus when it is imported, and each panel asks that one."""
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    assert {each["name"] for each in dashboard["templating"]["list"]} == {"source", "job"}
    assert {panel["datasource"]["uid"] for panel in PANELS} == {"${source}"}
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
