"""How is a panel written in Grafana's JSON?

The fields are those that Grafana 10, 11 and 12 have in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

#: Columns of Grafana's grid, and the height of a row's heading in its lines.
COLUMNS: Final = 24
HEADING: Final = 1

DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
#: What stands in a query for the chosen servers, the chosen models and the length of a rate.
SERVER: Final = 'job=~"$job", instance=~"$instance"'
STANDS_FOR: Final = {
    "<server>": SERVER,
    "<model>": SERVER + ', model=~"$model", version=~"$version"',
    "<rate>": "$__rate_interval",
}

Kind = Literal["timeseries", "stat", "heatmap", "state-timeline"]


class Query(NamedTuple):
    """A query of Prometheus, with the names of `STANDS_FOR`, and how a series is called."""

    expr: str
    legend: str


class Threshold(NamedTuple):
    """From this value on, in this colour."""

    value: float
    color: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One drawing. `unit` is one of Grafana's; `description` says what to do about it."""

    title: str
    unit: str
    description: str
    queries: Sequence[Query]
    kind: Kind = "timeseries"
    width: int = 8
    stacked: bool = False
    #: The end of the axis, if it is known.
    most: float | None = None
    thresholds: Sequence[Threshold] = ()
    #: Names of values, each with its colour.
    named: Sequence[tuple[float, str, str]] = ()

    @property
    def height(self) -> int:
        return 4 if self.kind == "stat" else 8


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a heading; `folded` until somebody opens it."""

    title: str
    panels: Sequence[Panel]
    folded: bool = False


def laid_out(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """All rows below each other, their panels from left to right."""
    made: list[dict[str, Any]] = []
    number, y = 0, 0
    for row in rows:
        number += 1
        heading: dict[str, Any] = {
            "id": number, "type": "row", "title": row.title, "collapsed": row.folded,
            "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": HEADING}, "panels": [],
        }  # fmt: skip
        made.append(heading)
        y += HEADING
        x = tallest = 0
        for panel in row.panels:
            number += 1
            if x + panel.width > COLUMNS:
                x, y, tallest = 0, y + tallest, 0
            place = {"x": x, "y": y, "w": panel.width, "h": panel.height}
            # What is folded is in its heading; Grafana takes it out again.
            (heading["panels"] if row.folded else made).append(_panel(panel, number, place))
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += 0 if row.folded else tallest
    return made


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": place,
        "targets": [_target(panel, query, i) for i, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _field(panel), "overrides": []},
        "options": _options(panel),
        "transparent": False,
    }


def _target(panel: Panel, query: Query, place: int) -> dict[str, Any]:
    expr = query.expr
    for name, meaning in STANDS_FOR.items():
        expr = expr.replace(name, meaning)
    return {
        "refId": chr(ord("A") + place),
        "datasource": DATASOURCE,
        "expr": expr,
        "legendFormat": query.legend,
        "editorMode": "code",
        "format": "heatmap" if panel.kind == "heatmap" else "time_series",
        "range": True,
        "instant": False,
    }


def _field(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"value": None, "color": "green"}]
    steps += [{"value": one.value, "color": one.color} for one in panel.thresholds]
    field: dict[str, Any] = {
        "unit": panel.unit,
        "noValue": "none",
        "color": {"mode": "thresholds" if panel.kind == "stat" else "palette-classic"},
        "thresholds": {"mode": "absolute", "steps": steps},
        "custom": _custom(panel),
    }
    if panel.kind == "timeseries":
        field["min"] = 0
    if panel.most is not None:
        field["max"] = panel.most
    if panel.named:
        texts = {
            f"{value:g}": {"text": text, "color": color, "index": i}
            for i, (value, text, color) in enumerate(panel.named)
        }
        field["mappings"] = [{"type": "value", "options": texts}]
    return field


def _custom(panel: Panel) -> dict[str, Any]:
    """How the values are drawn."""
    if panel.kind == "state-timeline":
        return {"lineWidth": 0, "fillOpacity": 70}
    if panel.kind != "timeseries":
        return {}
    return {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 40 if panel.stacked else 8,
        "showPoints": "auto",
        "spanNulls": False,
        "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
        "axisSoftMin": 0,
        "thresholdsStyle": {"mode": "line" if panel.thresholds else "off"},
    }


def _options(panel: Panel) -> dict[str, Any]:
    """What this kind of panel has besides."""
    made = dict(_OPTIONS[panel.kind])
    if panel.kind == "heatmap":
        made["yAxis"] = {"axisPlacement": "left", "reverse": False, "unit": panel.unit}
    return made


_LEGEND: Final = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
_OPTIONS: Final[Mapping[Kind, Mapping[str, Any]]] = {
    "timeseries": {
        "legend": {**_LEGEND, "displayMode": "table", "calcs": ["lastNotNull", "mean", "max"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value",
        "graphMode": "area",
        "justifyMode": "auto",
        "orientation": "auto",
        "textMode": "value",
    },
    "heatmap": {
        "calculate": False,
        "cellGap": 1,
        "color": {
            "mode": "scheme", "scheme": "Blues", "steps": 64, "exponent": 0.5, "fill": "blue",
            "reverse": False,
        },
        "filterValues": {"le": 1e-9},
        "rowsFrame": {"layout": "le"},
        "showValue": "never",
        "legend": {"show": True},
        "tooltip": {"show": True, "mode": "single", "yHistogram": True},  # mode: from 10.3 on
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
    },
    "state-timeline": {
        "mergeValues": True,
        "showValue": "never",
        "rowHeight": 0.8,
        "alignValue": "left",
        "legend": _LEGEND,
        "tooltip": {"mode": "single", "sort": "none"},
    },
}  # fmt: skip
