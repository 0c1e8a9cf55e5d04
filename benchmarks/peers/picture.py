"""How full does each server keep a device, and how long do its callers wait? One picture of it.

    python -m benchmarks.peers.picture [benchmarks/results/peers.json]

Draws docs/how-full.svg from what `python -m benchmarks.peers` measured.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.harness import ROOT
from benchmarks.peers.page import RESULTS, machine

PICTURE = ROOT / "docs" / "how-full.svg"
#: The servers, and what each was told of batches besides their size.
PEERS = {
    "wherry": "wherry, nothing to tune",
    "Triton": "Triton, dynamic_batching",
    "MOSEC": "MOSEC, waits 1 ms",
}
CALLERS = (1, 4, 16, 64)

WIDTH, HEIGHT = 820, 306
LEFT, PANEL, GAP, TOP, BASE = 20, 370, 40, 92, 262
BAR, SPACE = 26, 2
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2937; }
.title { font-size: 15px; font-weight: 600; }
.quiet { fill: #6b7280; font-size: 11px; }
.axis { stroke: #9ca3af; }
.wherry { fill: #2563eb; } .Triton { fill: #76b041; } .MOSEC { fill: #b9935a; }
.own { font-weight: 600; font-size: 11px; }
@media (prefers-color-scheme: dark) {
  text { fill: #e5e7eb; } .quiet { fill: #9ca3af; } .wherry { fill: #60a5fa; }
}
"""


class Panel(NamedTuple):
    """Bars for each number of callers and each peer, which share a scale."""

    title: str
    #: peer -> a value for each number of callers.
    values: dict[str, list[float]]
    #: The value as tall as the panel.
    top: float
    unit: str = ""


def main(arguments: Sequence[str]) -> None:
    path = Path(arguments[0]) if arguments else RESULTS
    record = json.loads(path.read_text())
    PICTURE.write_text(drawn(record), encoding="utf-8")


def drawn(record: dict[str, Any]) -> str:
    """The picture, as SVG."""
    full, waits = panels(record)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}"'
        ' role="img">',
        f"<title>{_told(full)}</title>",
        f"<style>{STYLE}</style>",
        text(LEFT, 24, "A model of 5 ms and 0.2 ms a row, batches of up to 32", "title"),
        *_legend(),
        *_panel(full, LEFT),
        *_panel(waits, LEFT + PANEL + GAP),
        text(LEFT, HEIGHT - 8, machine([record]).partition(";")[0] + ".", "quiet"),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def panels(record: dict[str, Any]) -> tuple[Panel, Panel]:
    """Share of the ideal rate, and the latency that one in a hundred exceeds: medians of runs."""
    cells = {cell["cell"]: cell for cell in record["cells"]}
    found = [cells[f"device/device/json/{callers}"] for callers in CALLERS]

    def each(peer: str, key: str) -> list[float]:
        return [median(run[key] for run in cell["peers"][peer]["runs"]) for cell in found]

    full = {
        peer: [
            100 * rate / cell["ideal"] for rate, cell in zip(each(peer, "rate"), found, strict=True)
        ]
        for peer in PEERS
    }
    waits = {peer: each(peer, "p99_ms") for peer in PEERS}
    return (
        Panel("Answers a second, of what the device could give", full, 100, "%"),
        Panel("Latency that 99 of 100 requests stay below, ms", waits, _most(waits)),
    )


def _most(values: dict[str, list[float]]) -> float:
    return max(max(each) for each in values.values())


def _panel(panel: Panel, left: float) -> Iterator[str]:
    yield text(left, TOP - 24, panel.title)
    yield f'<line class="axis" x1="{left}" x2="{left + PANEL}" y1="{BASE}" y2="{BASE}"/>'
    step = PANEL / len(CALLERS)
    for number, callers in enumerate(CALLERS):
        start = left + number * step + (step - len(PEERS) * (BAR + SPACE) + SPACE) / 2
        for place, peer in enumerate(PEERS):
            value = panel.values[peer][number]
            height = (BASE - TOP) * value / panel.top
            x, y = start + place * (BAR + SPACE), BASE - height
            yield (
                f'<rect class="{peer}" x="{x:.1f}" y="{y:.1f}" width="{BAR}"'
                f' height="{height:.1f}" rx="2"/>'
            )
            own = "own" if place == 0 else "quiet"
            yield text(x + BAR / 2, y - 4, f"{value:.0f}{panel.unit}", own, "middle")
        plural = "s" if callers > 1 else ""
        yield text(
            left + (number + 0.5) * step, BASE + 16, f"{callers} caller{plural}", "", "middle"
        )


def _legend() -> Iterator[str]:
    for place, (peer, told) in enumerate(PEERS.items()):
        x = LEFT + 190 * place
        yield f'<rect class="{peer}" x="{x}" y="36" width="12" height="12" rx="2"/>'
        yield text(x + 18, 46, told)


def text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'


def _told(full: Panel) -> str:
    """What the picture says, for those who do not see it."""
    last = len(CALLERS) - 1
    said = (
        f"{peer} {full.values[peer][0]:.0f} % at one caller, {full.values[peer][last]:.0f} % at"
        f" {CALLERS[last]}"
        for peer in PEERS
    )
    return f"How full the device is kept: {'; '.join(said)}."


if __name__ == "__main__":
    main(sys.argv[1:])
