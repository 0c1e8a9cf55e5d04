"""Writes wherry/core/observability/grafana/board.json: `make board`, after a change of its panels.

The board names no data source: that is one of its variables.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from tools.grafana.panels import DATASOURCE, SERVER, laid_out
from tools.grafana.rows import ROWS

FILE: Final = (
    Path(__file__).parents[2] / "wherry" / "core" / "observability" / "grafana" / "board.json"
)
#: That of Grafana 10.0: later ones turn it into theirs when they read it.
SCHEMA_VERSION: Final = 38
#: `wherry grafana` may say which one is chosen at first.
_DATASOURCE: Final = {
    "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus",
    "hide": 0, "refresh": 1, "regex": "", "multi": False, "includeAll": False, "options": [],
    "skipUrlSync": False,
}  # fmt: skip


def board() -> dict[str, Any]:
    """The board as Grafana imports it."""
    return {
        "uid": "wherry",
        "title": "wherry",
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
                _DATASOURCE,
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


def text() -> str:
    """The file: a line for each panel, so that a change shows."""
    made = board()
    panels = ",\n".join(json.dumps(panel) for panel in made.pop("panels"))
    return f'{json.dumps(made)[:-1]}, "panels": [\n{panels}\n]}}\n'


if __name__ == "__main__":
    FILE.write_text(text())
