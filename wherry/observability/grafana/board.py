"""What is on the Grafana board?

It names no data source: that is one of its variables.
"""

from __future__ import annotations

from typing import Any, Final

from wherry.observability.grafana.panels import DATASOURCE, SERVER, laid_out
from wherry.observability.grafana.rows import ROWS

UID: Final = "wherry"
TITLE: Final = "wherry"
#: That of Grafana 10.0: later ones turn it into theirs when they read it.
SCHEMA_VERSION: Final = 38


def board(*, uid: str = UID, title: str = TITLE, datasource: str = "") -> dict[str, Any]:
    """The board as Grafana imports it. `datasource` is the uid of the Prometheus that is chosen
    when the board is opened; "" leaves that to Grafana, which takes its default one."""
    return {
        "uid": uid,
        "title": title,
        "description": "Requests, batches, instances and machines of wherry servers.",
        "tags": ["wherry", "inference"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,  # one crosshair over all panels
        "timezone": "",
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "10s",
        "fiscalYearStartMonth": 0,
        "liveNow": False,
        "weekStart": "",
        "links": [],
        "annotations": {"list": []},
        "templating": {
            "list": [
                _datasource(datasource),
                # No expression for all: a job that is none of ours must not match.
                _chosen("job", "Job", "wherry_info", ""),
                _chosen("instance", "Server", 'wherry_info{job=~"$job"}', ".*"),
                _chosen("model", "Model", f"wherry_model_ready{{{SERVER}}}", ".*"),
                _chosen(
                    "version", "Version", f'wherry_model_ready{{{SERVER}, model=~"$model"}}', ".*"
                ),
            ]
        },
        "panels": laid_out(ROWS),
    }


def _datasource(uid: str) -> dict[str, Any]:
    variable = {
        "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus",
        "hide": 0, "refresh": 1, "regex": "", "multi": False, "includeAll": False, "options": [],
        "skipUrlSync": False,
    }  # fmt: skip
    if uid:
        variable["current"] = {"selected": True, "text": uid, "value": uid}
    return variable


def _chosen(name: str, label: str, series: str, of_all: str) -> dict[str, Any]:
    """A variable with the values of a label; `of_all` is the expression that matches all."""
    query = f"label_values({series}, {name})"
    variable = {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": f"Variable-{name}"},
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "includeAll": True,
        "multi": True,
        "hide": 0,
        "refresh": 2,  # when the time range changes
        "regex": "",
        "sort": 1,
        "options": [],
        "skipUrlSync": False,
    }
    if of_all:
        variable["allValue"] = of_all
    return variable
