"""How does a report become a picture? (matplotlib, the extra `plot`, lives here alone.)"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from wherry.errors import ConfigError
from wherry.loadtest.report import Point, Report, number, shown

COLOURS = ("#2563c9", "#d4680a", "#18855a", "#8a3ffc", "#c2255c", "#0b7285")


def draw(report: Report, path: str) -> None:
    """Throughput and latency over the load, latency against throughput, the time line of the
    fastest run, and for sweeps heat maps: one PNG (or whatever the path's ending says).
    ConfigError without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("--png needs matplotlib: pip install 'wherry[plot]'") from None
    by = _axis(report)
    others = [name for name in report.swept if name != by]
    figure = Figure(figsize=(18 if others else 12, 8), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    target = report.target
    figure.suptitle(" · ".join(filter(None, (target.model, target.protocol, target.url))))
    axes = figure.subplots(2, 3 if others else 2)
    _lines(figure, axes, report, by, others)
    _timeline(axes[1, 1], max(report.points, key=_rate))
    if others:
        _heat(axes[0, 2], report.points, by, others, "rows/s", _rate)
        _heat(axes[1, 2], report.points, by, others, "p95, ms", lambda point: _ms(point, "p95"))
    figure.savefig(path)


def _lines(figure: Any, axes: Any, report: Report, by: str, others: list[str]) -> None:
    """A line for each setting; without other settings one for each percentile."""
    quantiles = ("p95",) if others else ("p50", "p95", "p99")
    series = _series(report.points, by, others)
    for n, (name, points) in enumerate(series.items()):
        look = {"color": COLOURS[n % 6], "ls": ("-", "--", ":")[n // 6 % 3], "marker": "o"}
        loads = [point.settings.get(by, m) for m, point in enumerate(points)]
        rates = [_rate(point) for point in points]
        axes[0, 0].plot(loads, rates, **look, label=name)
        axes[1, 0].plot(rates, [_ms(point, "p95") for point in points], **look)
        for m, quantile in enumerate(quantiles, n):
            values = [_ms(point, quantile) for point in points]
            style = look if others else {**look, "color": COLOURS[m]}
            axes[0, 1].plot(loads, values, **style, label=quantile)
    for axis, x, y in (
        (axes[0, 0], by, "rows/s"),
        (axes[0, 1], by, "p95, ms" if others else "latency, ms"),
        (axes[1, 0], "rows/s", "p95, ms"),
    ):
        _finish(axis, x, y)
    for axis in axes[0, :2]:
        tried: set[Any] = {point.settings.get(by) for point in report.points}
        if all(isinstance(load, int | float) and load > 0 for load in tried):
            ticks: list[Any] = []
            for load in sorted(tried):  # a search tries some that are too near for a label
                if not ticks or load > 1.2 * ticks[-1]:
                    ticks.append(load)
            axis.set_xscale("log", base=2)
            axis.set_xticks(ticks, [shown(load) for load in ticks])
            axis.minorticks_off()
    if others:
        title = " · ".join(others).replace("_", " ")
        figure.legend(*axes[0, 0].get_legend_handles_labels(), title=title, ncols=6,
                      loc="outside lower center")  # fmt: skip
    else:
        axes[0, 1].legend()


def _axis(report: Report) -> str:
    swept = report.swept or [name for point in report.points for name in point.settings]
    return next((name for name in ("callers", "rate", "rows") if name in swept), (*swept, "run")[0])


def _key(point: Point, names: list[str]) -> str:
    return " · ".join(shown(point.settings.get(name, "")) for name in names)


def _series(points: list[Point], by: str, others: list[str]) -> dict[str, list[Point]]:
    found: dict[str, list[Point]] = {}
    for point in points:
        found.setdefault(_key(point, others), []).append(point)
    for line in found.values():
        if all(isinstance(point.settings.get(by), int | float) for point in line):
            line.sort(key=lambda point: float(point.settings[by]))
    return found


def _rate(point: Point) -> float:
    return point.figures.rows_per_second


def _ms(point: Point, quantile: str) -> float | None:
    latency = point.figures.latency
    return None if latency is None else 1e3 * float(getattr(latency, quantile))


def _finish(axis: Any, x: str, y: str) -> None:
    axis.set_xlabel(x.replace("_", " "))
    axis.set_ylabel(y)
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)


def _timeline(axis: Any, point: Point) -> None:
    pieces = point.timeline
    at = [piece.at + piece.seconds / 2 for piece in pieces]
    axis.plot(at, [piece.rows_per_second for piece in pieces], color=COLOURS[0])
    measured = next((piece.at for piece in pieces if not piece.warmup), 0.0)
    axis.axvspan(0, measured, color="#00000012")
    _finish(axis, f"seconds ({point.label})", "rows/s")
    axis.yaxis.label.set_color(COLOURS[0])
    latency = axis.twinx()
    values = [None if piece.p95 is None else 1e3 * piece.p95 for piece in pieces]
    latency.plot(at, values, color=COLOURS[1])
    latency.set_ylabel("p95, ms", color=COLOURS[1])
    latency.set_ylim(bottom=0)


def _heat(
    axis: Any, points: list[Point], by: str, others: list[str], what: str,
    read: Callable[[Point], float | None],
) -> None:  # fmt: skip
    """One setting across, the others down; a point that was repeated counts by its median."""
    lines = _series(points, by, others)
    across = list(dict.fromkeys(_key(point, [by]) for line in lines.values() for point in line))
    cells = np.full((len(lines), len(across)), np.nan)
    for row, line in enumerate(lines.values()):
        for column, load in enumerate(across):
            values = [read(point) for point in line if _key(point, [by]) == load]
            if any(value is not None for value in values):
                cells[row, column] = np.median([value for value in values if value is not None])
    axis.imshow(cells, cmap="Blues", aspect="auto")
    known = cells[~np.isnan(cells)]
    for (row, column), value in np.ndenumerate(cells):
        if not np.isnan(value):
            colour = "white" if value > (known.min() + known.max()) / 2 else "black"
            axis.text(column, row, number(float(value)), ha="center", va="center", color=colour)
    axis.set_xticks(range(len(across)), across)
    axis.set_yticks(range(len(lines)), list(lines))
    axis.set_xlabel(by.replace("_", " "))
    axis.set_ylabel(" · ".join(others).replace("_", " "))
    axis.set_title(what)
