"""The pictures of the pages about batching, as plain SVG text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, log
from pathlib import Path
from typing import Any

from benchmarks.batching.callers import Arrivals
from benchmarks.batching.curves import CURVES
from benchmarks.batching.device import Device
from benchmarks.batching.judge import GREEDY, OURS, made
from benchmarks.batching.play import Trace, figures, play
from benchmarks.batching.scenarios import SEEDS, Scenario
from benchmarks.batching.sweep import best_pair, run_pair
from wherry.core.scheduler.dynamic_batcher import DynamicBatcher
from wherry.core.scheduler.policy import Scheduler

BLUE, ORANGE, GREY, PALE = "#1f6feb", "#d1752d", "#8a8f98", "#e4e6ea"
Point = tuple[float, float]
#: Seconds over which callers first send: as long as a round takes.
SPREAD = 0.01
#: 5 ms and 0.2 ms a row, one instance.
EXAMPLE = Scenario(
    "example", Device(CURVES["gpu"]), Arrivals(callers=4), instances=1, limit=256, total=5000
)


def text(x: float, y: float, what: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#333">{what}</text>'


def line(points: Sequence[Point], color: str, width: float = 2.0) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="{width}"/>'


def save(path: Path, width: int, height: int, parts: Sequence[str]) -> None:
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        f' width="{width}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="{width}" height="{height}" fill="white"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def legend(x: float, y: float, *entries: tuple[str, str]) -> list[str]:
    parts = []
    for n, (what, color) in enumerate(entries):
        parts.append(line([(x, y + 16 * n - 4), (x + 18, y + 16 * n - 4)], color))
        parts.append(text(x + 24, y + 16 * n, what))
    return parts


def run(scheduler: Scheduler, scenario: Scenario) -> Trace:
    seed = SEEDS[0]
    load = scenario.load(seed)
    return play(scheduler, scenario.batch_seconds(seed), load, scenario.instances)


def draw_callers(path: Path) -> None:
    """Throughput over callers in a closed loop."""
    numbers = [1, 2, 4, 10, 16, 64, 256]
    arrivals = [Arrivals(n, spread=SPREAD) for n in numbers]
    loops = [replace(EXAMPLE, name=f"callers {a.callers}", arrivals=a) for a in arrivals]
    curves = {
        GREY: [run_pair(s, best_pair(s), SEEDS[0]).rate for s in loops],
        ORANGE: [run_pair(s, (s.limit, 0.0), SEEDS[0]).rate for s in loops],
        BLUE: [figures(run(made(OURS, s), s), True).rate for s in loops],
    }
    most = 1000 * ceil(max(map(max, curves.values())) / 1000)

    def at(callers: int, rate: float) -> Point:
        return 60 + 540 * log(callers) / log(256), 260 - 240 * rate / most

    parts = []
    for thousands in range(most // 1000 + 1):
        y = at(1, 1000 * thousands)[1]
        parts += [line([(60, y), (600, y)], PALE, 1), text(54, y + 4, str(1000 * thousands), "end")]
    parts += [text(at(n, 0)[0], 278, str(n), "middle") for n in numbers]
    parts += [text(330, 296, "callers in a closed loop", "middle"), text(54, 14, "rows/s", "end")]
    for color, rates in curves.items():
        points = [at(n, rate) for n, rate in zip(numbers, rates, strict=True)]
        parts.append(line(points, color, 6.0 if color == GREY else 2.0))
    parts += legend(
        80, 40, ("self-tuning", BLUE), ("greedy", ORANGE), ("best pair of a sweep, for each", GREY)
    )
    save(path, 620, 304, parts)


def draw_timeline(path: Path) -> None:
    """Four callers in a closed loop on one instance: what runs when."""
    parts = []
    for y, name, color, scheduler in (
        (30, "greedy", ORANGE, DynamicBatcher(max_batch_size=EXAMPLE.limit)),
        (100, "self-tuning", BLUE, made(OURS, EXAMPLE)),
    ):
        batches = run(scheduler, EXAMPLE).batches
        first = next(start for start, *_ in batches if start > 0.1)
        answers = 0
        for start, took, batch in batches:
            x, right = (60 + 11_000 * (moment - first) for moment in (start, start + took))
            if start < first or right > 610:
                continue
            answers += batch.rows
            parts.append(
                f'<rect x="{x:.1f}" y="{y}" width="{right - x:.1f}" height="{8 * batch.rows}"'
                f' fill="{color}" stroke="white"/>'
            )
            parts.append(text((x + right) / 2, y + 44, str(batch.rows), "middle"))
        what = f"{name}: {answers} answers in 50 ms, rows of each batch below"
        parts.append(text(60, y - 8, what))
    parts += [text(60 + 110 * n, 168, f"{10 * n} ms", "middle") for n in range(6)]
    save(path, 640, 178, parts)


def draw_scenarios(path: Path, rows: Sequence[dict[str, Any]], policy: str) -> None:
    """The 95th percentile in every scenario, best first."""
    parts = [text(8, 14, "p95 against the best pair of a sweep, held-out scenarios, best first")]

    def at(n: int, percent: float) -> Point:
        x = 60 + 540 * n / max(1, len(rows) - 1)
        return x, 150 - max(-50.0, min(100.0, percent)) * 1.2

    for percent in (-50, 0, 50, 100):
        y = at(0, percent)[1]
        parts += [line([(60, y), (600, y)], PALE, 1), text(54, y + 4, f"{percent:+} %", "end")]
    for color, name in ((ORANGE, GREEDY), (BLUE, policy)):
        values = sorted(row[name]["p95"] for row in rows)
        parts.append(line([at(n, value) for n, value in enumerate(values)], color))
    parts += legend(80, 44, ("self-tuning", BLUE), ("greedy (beyond +100 % cut off)", ORANGE))
    save(path, 620, 222, parts)
