"""One classifier in five frameworks: the picture that the README shows.

    python -m benchmarks.frameworks.picture

Draws docs/frameworks.svg from benchmarks/results/frameworks.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from benchmarks.harness import ROOT
from benchmarks.peers.picture import text

RESULTS = ROOT / "benchmarks" / "results" / "frameworks.json"
PICTURE = ROOT / "docs" / "frameworks.svg"
COLOURS = {
    "wherry": "#2563eb",
    "LitServe": "#8b5cf6",
    "BentoML": "#0d9488",
    "Ray Serve": "#b9935a",
    "FastAPI": "#9ca3af",
}
WIDTH, LEFT, BAR, SPACE, TALL = 820, 20, 30, 4, 120
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2937; }
.title { font-size: 15px; font-weight: 600; }
.quiet { fill: #6b7280; font-size: 11px; }
.axis { stroke: #9ca3af; }
.own { font-weight: 600; font-size: 11px; }
@media (prefers-color-scheme: dark) { text { fill: #e5e7eb; } .quiet { fill: #9ca3af; } }
"""


def drawn(record: dict[str, Any]) -> str:
    rows = record["rows"]
    rates, waits = _values(rows, "rate"), _values(rows, "p95_ms")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} 466" width="{WIDTH}"'
        ' role="img">',
        f"<title>{title(record)}</title>",
        f"<style>{STYLE}</style>",
        text(LEFT, 24, "One scikit-learn text classifier, one copy, a row a request", "title"),
        *_legend(),
        *_panel("Requests a second (more is better)", rates, 80),
        *_panel("Latency that 95 of 100 requests stay below, ms (less is better)", waits, 278),
        text(LEFT, 458, _where(record), "quiet"),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _where(record: dict[str, Any]) -> str:
    versions = record["versions"]
    of = [f"{name} {versions[name.lower()]}" for name in ("LitServe", "BentoML", "Ray", "FastAPI")]
    return (
        f"{record['cores']} cores of {record['processor']}, {record['when'][:10]}, wrk, medians;"
        f" {', '.join(of)}"
    )


def title(record: dict[str, Any]) -> str:
    """What the picture says, for those who do not see it."""
    rates = _values(record["rows"], "rate")
    callers = sorted({row["callers"] for row in record["rows"]})
    told = [
        f"{framework} {', '.join(f'{rate:,.0f}' for rate in rates[framework])}"
        for framework in COLOURS
        if framework in rates
    ]
    return f"Requests a second at {', '.join(map(str, callers))} clients: {'; '.join(told)}"


def _values(rows: list[dict[str, Any]], key: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for row in sorted(rows, key=lambda one: int(one["callers"])):
        found.setdefault(row["what"], []).append(row[key])
    return found


def _panel(title: str, values: dict[str, list[float]], top: int) -> Iterator[str]:
    yield text(LEFT, top, title)
    base, most = top + 30 + TALL, max(max(each) for each in values.values())
    yield f'<line class="axis" x1="{LEFT}" x2="{WIDTH - LEFT}" y1="{base}" y2="{base}"/>'
    frameworks = [one for one in COLOURS if one in values]
    step = (WIDTH - 2 * LEFT) / 4
    for place, callers in enumerate(("1 client", "8 clients", "32 clients", "128 clients")):
        start = LEFT + place * step + (step - len(frameworks) * (BAR + SPACE)) / 2
        for number, framework in enumerate(frameworks):
            value = values[framework][place]
            height = max(1.0, TALL * value / most)
            x = start + number * (BAR + SPACE)
            yield (
                f'<rect fill="{COLOURS[framework]}" x="{x:.1f}" y="{base - height:.1f}"'
                f' width="{BAR}" height="{height:.1f}" rx="2"/>'
            )
            kind = "own" if framework == "wherry" else "quiet"
            yield text(x + BAR / 2, base - height - 4, _short(value), kind, "middle")
        yield text(LEFT + (place + 0.5) * step, base + 16, callers, "", "middle")


def _legend() -> Iterator[str]:
    for place, (framework, colour) in enumerate(COLOURS.items()):
        x = LEFT + 110 * place
        yield f'<rect fill="{colour}" x="{x}" y="38" width="12" height="12" rx="2"/>'
        yield text(x + 18, 48, framework)


def _short(value: float) -> str:
    return f"{value / 1000:.1f}k" if value >= 1000 else f"{value:.0f}"


if __name__ == "__main__":
    PICTURE.write_text(drawn(json.loads(RESULTS.read_text())), encoding="utf-8")
