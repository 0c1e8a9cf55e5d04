"""What do the results say? Draws the pictures of docs/internals/batching.md, and its tables.

    python -m benchmarks.batching.page

Everything comes from benchmarks/results/*.json but the timeline, which is simulated here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from math import log
from typing import Any

from benchmarks.batching.scenarios import fixed, good, summary
from benchmarks.batching.simulator import CURVES, Arrivals, simulate
from benchmarks.harness import ROOT
from wherry.scheduler.policy import Action, Dispatch, Scheduler
from wherry.scheduler.self_tuning_batcher import SelfTuningBatcher
from wherry.values.request import InferRequest

RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "internals" / "batching.md"
BEGIN, END = "<!-- figures: python -m benchmarks.batching.page -->", "<!-- end of figures -->"
OURS, GREEDY, PAIR = "#1f6feb", "#d1752d", "#8a8f98"
Point = tuple[float, float]


def rows_of(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
    return rows


# Pictures: plain SVG text


def text(x: float, y: float, what: str, anchor: str = "start", color: str = "#333") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}">{what}</text>'


def line(points: Sequence[Point], color: str, width: float = 2.0) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="{width}"/>'


def save(name: str, width: int, height: int, parts: Sequence[str]) -> None:
    (PAGE.parent / f"{name}.svg").write_text(
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


def draw_callers(rows: list[dict[str, Any]]) -> None:
    """Throughput over callers in a closed loop, one instance: 5 ms and 0.2 ms a row."""
    loops = [
        (int(row["arrivals"].split()[1]), row)
        for row in rows
        if row["curve"] == "gpu"
        and row["instances"] == 1
        and re.fullmatch(r"closed \d+", row["arrivals"])
    ]
    most = 5000

    def at(callers: int, rate: float) -> Point:
        return 60 + 540 * log(callers) / log(256), 260 - 240 * rate / most

    parts = [line([(60, 260 - 48 * n), (600, 260 - 48 * n)], "#e4e6ea", 1) for n in range(6)]
    parts += [text(54, 264 - 48 * n, str(1000 * n), "end") for n in range(6)]
    parts += [text(at(n, 0)[0], 278, str(n), "middle") for n, _ in loops]
    parts += [text(330, 296, "callers in a closed loop", "middle"), text(54, 30, "/s", "end")]
    for color, width, factor in (
        (PAIR, 6.0, lambda row: 1.0),
        (GREEDY, 2.0, lambda row: 1 + row["greedy_rate_%"] / 100),
        (OURS, 2.0, lambda row: 1 + row["ours_rate_%"] / 100),
    ):
        parts.append(line([at(n, row["rate"] * factor(row)) for n, row in loops], color, width))
    parts += legend(
        80, 40, ("self-tuning", OURS), ("greedy", GREEDY), ("best pair of a sweep, for each", PAIR)
    )
    save("batching-callers", 620, 304, parts)


class Recorder:
    """Writes down when batches of how many rows began and ended."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.begun: list[tuple[float, int]] = []
        self.batches: list[tuple[float, float, int]] = []

    def enqueue(self, request: InferRequest, now: float) -> bool:
        return self.scheduler.enqueue(request, now)

    def next_action(self, now: float, instance: int = 0) -> Action:
        action = self.scheduler.next_action(now, instance)
        if isinstance(action, Dispatch):
            self.begun.append((now, action.batch.rows))
        return action

    def finished(self, requests: Sequence[InferRequest], seconds: float | None, now: float) -> None:
        began, rows = self.begun.pop()
        self.batches.append((began, now, rows))
        self.scheduler.finished(requests, seconds, now)


def draw_timeline() -> None:
    """Four callers in a closed loop on one instance: what runs when."""
    parts = []
    for y, name, color, scheduler in (
        (30, "greedy", GREEDY, fixed(64, 0.0)),
        (100, "self-tuning", OURS, SelfTuningBatcher(max_batch_size=64)),
    ):
        recorder = Recorder(scheduler)
        simulate(recorder, CURVES["gpu"], Arrivals(callers=4), total=400)  # type: ignore[arg-type] # three of its methods
        start = next(began for began, *_ in recorder.batches if began > 0.1)
        answers = 0
        for began, ended, rows in recorder.batches:
            x, right = (60 + 11_000 * (moment - start) for moment in (began, ended))
            if began < start or right > 610:
                continue
            answers += rows
            parts.append(
                f'<rect x="{x:.1f}" y="{y}" width="{right - x:.1f}" height="{8 * rows}"'
                f' fill="{color}" stroke="white"/>'
            )
            parts.append(text((x + right) / 2, y + 44, str(rows), "middle"))
        parts.append(
            text(60, y - 8, f"{name}: {answers} answers in 50 ms, rows of each batch below")
        )
    parts += [text(60 + 110 * n, 168, f"{10 * n} ms", "middle") for n in range(6)]
    save("batching-timeline", 640, 178, parts)


def draw_scenarios(rows: list[dict[str, Any]]) -> None:
    """The 95th percentile in every held-out scenario, best first."""
    parts = [text(8, 14, "p95 against the best pair of a sweep, held-out scenarios, best first")]

    def at(n: int, percent: float) -> Point:
        return 60 + 540 * n / (len(rows) - 1), 150 - max(-50.0, min(100.0, percent)) * 1.2

    for percent in (-50, 0, 50, 100):
        y = at(0, percent)[1]
        parts += [line([(60, y), (600, y)], "#e4e6ea", 1), text(54, y + 4, f"{percent:+} %", "end")]
    for color, policy in ((GREEDY, "greedy"), (OURS, "ours")):
        values = sorted(row[f"{policy}_p95_%"] for row in rows)
        parts.append(line([at(n, value) for n, value in enumerate(values)], color))
    parts += legend(80, 44, ("self-tuning", OURS), ("greedy (beyond +100 % cut off)", GREEDY))
    save("batching-held-out", 620, 222, parts)


# Tables


def table(header: Sequence[str], body: Sequence[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *body]
    return "\n".join("| " + " | ".join(str(cell) for cell in row) + " |" for row in lines)


def signed(percent: float) -> str:
    return f"{percent + 0.0:+.1f} %"  # no -0.0


def figures(tuned: list[dict[str, Any]], held: list[dict[str, Any]]) -> str:
    groups = [
        (what, [row for row in rows if (row["instances"] == 1) == one])
        for what, rows in (("shaped on", tuned), ("held out", held))
        for one in (True, False)
    ]
    body = []
    for what, some in groups:
        instances = "1 instance" if some[0]["instances"] == 1 else "2 to 8 instances"
        for name, policy in (("self-tuning", "ours"), ("greedy", "greedy")):
            s = summary(some, policy)
            body.append(
                [
                    f"{what}, {instances}",
                    name,
                    f"{s['both within 2 %']} of {s['scenarios']}",
                    f"{s['rate within 2 %']} of {s['scenarios']}",
                    f"{signed(s['median rate %'])} / {signed(s['worst rate %'])}",
                    f"{signed(s['median p95 %'])} / {signed(s['worst p95 %'])}",
                ]
            )
    header = ["scenarios", "policy", "both within 2 %", "throughput within 2 %"]
    header += ["throughput: median / worst", "p95: median / worst"]
    parts = [table(header, body)]

    worst = sorted(held, key=lambda row: row["ours_rate_%"] * 2 - row["ours_p95_%"])[:8]
    worst += sorted(tuned, key=lambda row: row["ours_rate_%"] * 2 - row["ours_p95_%"])[:8]
    parts.append("The eight worst of each, held out first (`fixed + a row's milliseconds`):")
    parts.append(
        table(
            ["curve", "arrivals", "instances", "best pair", "throughput", "p95"],
            [
                [
                    row["curve"],
                    row["arrivals"],
                    row["instances"],
                    f"{row['size']}, {row['delay_ms']} ms",
                    signed(row["ours_rate_%"]),
                    signed(row["ours_p95_%"]),
                ]
                for row in worst
            ],
        )
    )
    parts.append("Texts (3 ms and 0.004 ms a token, rows padded to the longest), one instance:")
    texts = [row for row in tuned if row["curve"] == "token" and row["instances"] == 1]
    parts.append(
        table(
            ["arrivals", "against the best pair", "p95", "against greedy", "of sorted offline"],
            [
                [
                    row["arrivals"],
                    signed(row["ours_rate_%"]),
                    signed(row["ours_p95_%"]),
                    signed(row["ours_rate_to_fifo_of_all_%"]),
                    f"{row['of_sorted_offline_%']:.0f} %" if "of_sorted_offline_%" in row else "",
                ]
                for row in texts
            ],
        )
    )
    parts.append("CPU time of the policy itself for each request, microseconds:")
    parts.append(
        table(
            ["", "greedy", "self-tuning"],
            [
                [row["what"], row["greedy us"], row["self-tuning us"]]
                for row in rows_of("policy_cost")
            ],
        )
    )
    return "\n\n".join(parts)


def main() -> None:
    tuned, held = rows_of("batching"), rows_of("batching_held_out")
    draw_callers(tuned)
    draw_timeline()
    draw_scenarios(held)
    page = PAGE.read_text()
    start, stop = page.index(BEGIN) + len(BEGIN), page.index(END)
    PAGE.write_text(f"{page[:start]}\n\n{figures(tuned, held)}\n\n{page[stop:]}")
    print(sum(map(good, tuned)), "of", len(tuned), "and", sum(map(good, held)), "of", len(held))


if __name__ == "__main__":
    main()
