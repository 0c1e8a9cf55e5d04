"""How does a report become a picture? (matplotlib, the extra `plot`, lives here alone.)"""

from __future__ import annotations

from typing import Any

from wherry.errors import ConfigError
from wherry.loadtest.report import Point, Report

COLOURS = ("#2563c9", "#d4680a", "#18855a", "#8a3ffc", "#c2255c", "#0b7285")


def draw(report: Report, path: str) -> None:
    """Throughput and latency over the load, latency against throughput, the time line of the
    fastest run: one PNG (or whatever the path's ending says). ConfigError without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("--png needs matplotlib: pip install 'wherry[plot]'") from None
    figure = Figure(figsize=(12, 8), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    target = report.target
    figure.suptitle(" · ".join(filter(None, (target.model, target.protocol, target.url))))
    axes = figure.subplots(2, 2)
    by = _axis(report)
    series = _series(report, by)
    for (name, points), colour in zip(series.items(), COLOURS * 100, strict=False):
        loads = [point.settings.get(by, n) for n, point in enumerate(points)]
        rates = [point.figures.rows_per_second for point in points]
        axes[0, 0].plot(loads, rates, "o-", color=colour, label=name)
        for quantile, style in (("p50", ":"), ("p95", "-"), ("p99", "--")):
            values = [_ms(point, quantile) for point in points]
            label = f"{name} {quantile}".strip() if len(series) < 4 or quantile == "p95" else None
            axes[0, 1].plot(loads, values, f"o{style}", color=colour, label=label)
        values = [_ms(point, "p95") for point in points]
        axes[1, 0].plot(rates, values, "o-", color=colour, label=name)
    for axis, x, y in (
        (axes[0, 0], by, "rows/s"),
        (axes[0, 1], by, "latency, ms"),
        (axes[1, 0], "rows/s", "p95, ms"),
    ):
        _finish(axis, x, y)
    _timeline(axes[1, 1], max(report.points, key=lambda p: p.figures.rows_per_second))
    figure.savefig(path)


def _axis(report: Report) -> str:
    swept = report.swept or [name for point in report.points for name in point.settings]
    return next((name for name in ("callers", "rate", "rows") if name in swept), (*swept, "run")[0])


def _series(report: Report, by: str) -> dict[str, list[Point]]:
    found: dict[str, list[Point]] = {}
    for point in report.points:
        others = {n: v for n, v in point.settings.items() if n != by and n in report.swept}
        name = ", ".join(f"{n} {v}" for n, v in others.items())
        found.setdefault(name, []).append(point)
    for points in found.values():
        if all(isinstance(point.settings.get(by), int | float) for point in points):
            points.sort(key=lambda point: point.settings[by])
    return found


def _ms(point: Point, quantile: str) -> float | None:
    latency = point.figures.latency
    return None if latency is None else 1e3 * float(getattr(latency, quantile))


def _finish(axis: Any, x: str, y: str) -> None:
    axis.set_xlabel(x.replace("_", " "))
    axis.set_ylabel(y)
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    if any(not label.startswith("_") for label in axis.get_legend_handles_labels()[1]):
        axis.legend(fontsize=8)


def _timeline(axis: Any, point: Point) -> None:
    pieces = point.timeline
    at = [piece.at + piece.seconds / 2 for piece in pieces]
    axis.plot(at, [piece.rows_per_second for piece in pieces], color=COLOURS[0], label="rows/s")
    measured = next((piece.at for piece in pieces if not piece.warmup), 0.0)
    axis.axvspan(0, measured, color="#00000012")
    _finish(axis, f"seconds ({point.label})", "rows/s")
    latency = axis.twinx()
    values = [None if piece.p95 is None else 1e3 * piece.p95 for piece in pieces]
    latency.plot(at, values, color=COLOURS[1], label="p95 ms")
    latency.set_ylabel("p95, ms", color=COLOURS[1])
    latency.set_ylim(bottom=0)
