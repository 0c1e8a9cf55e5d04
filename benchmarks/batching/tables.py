"""What do the rows of a comparison say, by kind, and which scenarios are the worst?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from benchmarks.batching.judge import AGAIN, GREEDY

Row = dict[str, Any]
#: Worse than greedy: by more points of throughput, or of p95.
WORSE_RATE, WORSE_P95 = 2.0, 5.0
COLD = -10.0
#: Behaviours that are there once in a run: the other ones are "lasting".
PASSING = ("shift", "slow first")
TOTALS = ("all", "instances 1", "instances 2 to 8")


def within(row: Row, policy: str, points: float) -> bool:
    return bool(row[policy]["rate"] >= -points and row[policy]["p95"] <= points)


def worse_than_greedy(row: Row, policy: str) -> bool:
    ours, greedy = row[policy], row[GREEDY]
    return bool(
        ours["rate"] < greedy["rate"] - WORSE_RATE or ours["p95"] > greedy["p95"] + WORSE_P95
    )


def badness(row: Row, policy: str) -> float:
    """How far outside of the goal, in points of throughput: two of p95 count as one."""
    return float(max(-row[policy]["rate"], row[policy]["p95"] / 2))


def groups(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """All rows, and those of each kind."""
    found = [("all", list(rows))]
    for what in ("instances", "curve", "callers", "behaviour"):
        kinds = sorted({row[what] for row in rows})
        found += [(f"{what} {kind}", [row for row in rows if row[what] == kind]) for kind in kinds]
        if what == "instances":
            found.append(("instances 2 to 8", [row for row in rows if row["instances"] > 1]))
    lasting = [row for row in rows if row["behaviour"] not in PASSING]
    found.append(("lasting, 1 instance", [row for row in lasting if row["instances"] == 1]))
    found.append(("lasting, 2 to 8", [row for row in lasting if row["instances"] > 1]))
    return [(name, some) for name, some in found if some]


def share(some: Sequence[Row], test: Callable[[Row], bool]) -> float:
    return round(100 * sum(map(test, some)) / len(some))


def summary(some: Sequence[Row], policy: str) -> Row:
    return {
        "scenarios": len(some),
        "within 2": share(some, lambda row: within(row, policy, 2)),
        "within 5": share(some, lambda row: within(row, policy, 5)),
        "worst rate": min(row[policy]["rate"] for row in some),
        "worst p95": max(row[policy]["p95"] for row in some),
        "mean rate": round(fmean(row[policy]["rate"] for row in some), 1),
        "mean p95": round(fmean(row[policy]["p95"] for row in some), 1),
        "worse than greedy": share(some, lambda row: worse_than_greedy(row, policy)),
    }


def by_kind(rows: Sequence[Row], policy: str) -> str:
    """A table: one line for each kind, greedy's figures beside."""
    head = (
        f"{'':<20}{'n':>5}{'in 2 %':>8}{'in 5 %':>8}{'worst rate':>12}{'worst p95':>11}"
        f"{'mean rate':>11}{'mean p95':>10}{'<greedy':>9} | greedy{'in 2':>6}{'in 5':>6}"
        f"{'w. rate':>9}{'w. p95':>9}"
    )
    lines = [policy, head]
    for name, some in groups(rows):
        s, g = summary(some, policy), summary(some, GREEDY)
        lines.append(
            f"{name:<20}{s['scenarios']:>5}{s['within 2']:>8.0f}{s['within 5']:>8.0f}"
            f"{s['worst rate']:>+12.1f}{s['worst p95']:>+11.1f}{s['mean rate']:>+11.1f}"
            f"{s['mean p95']:>+10.1f}{s['worse than greedy']:>8.0f}% |"
            f"{g['within 2']:>13.0f}{g['within 5']:>6.0f}{g['worst rate']:>+9.1f}"
            f"{g['worst p95']:>+9.1f}"
        )
    return "\n".join(lines)


def cold_start(rows: Sequence[Row], policy: str) -> str:
    """The first requests against greedy's, of each run."""
    parts = []
    for field, sign in (("cold rate", 1), ("cold mean", -1)):
        runs = [(sign * value, row["name"]) for row in rows for value in row[policy][field]]
        worst, name = min(runs)
        below = 100 * sum(value < COLD for value, _ in runs) / len(runs)
        what = "throughput" if sign == 1 else "mean answer time"
        parts.append(
            f"{what} worst {sign * worst:+.1f} % ({name}), {below:.1f} % of the runs"
            " more than 10 % worse"
        )
    return "cold start against greedy: " + "; ".join(parts)


def noise_floor(rows: Sequence[Row]) -> str:
    parts = [
        f"{name}: in 2 % {s['within 2']:.0f}, in 5 % {s['within 5']:.0f}"
        for name, s in [(name, summary(some, AGAIN)) for name, some in groups(rows)]
        if name in TOTALS
    ]
    return f"the pair itself with other noise: {'; '.join(parts)}"


def late(rows: Sequence[Row], policy: str) -> str:
    some = [row for row in rows if row["callers"] == "deadlines"]
    if not some:
        return ""
    name = f"answered late, points more than the pair, of {len(some)} scenarios with deadlines"
    mean, worst = (f(row[policy]["late"] for row in some) for f in (fmean, max))
    greedy = fmean(row[GREEDY]["late"] for row in some)
    return f"{name}: mean {mean:+.2f}, worst {worst:+.2f}; greedy {greedy:+.2f}"


def worst(rows: Sequence[Row], policy: str, count: int = 10) -> list[Row]:
    return sorted(rows, key=lambda row: -badness(row, policy))[:count]


def line(row: Row, policy: str) -> str:
    ours, greedy = row[policy], row[GREEDY]
    return (
        f"  {ours['rate']:+6.1f} % p95 {ours['p95']:+7.1f} % mean {ours['mean']:+7.1f} %"
        f" (greedy {greedy['rate']:+.1f} {greedy['p95']:+.1f}; pair {row['pair']}"
        f" {row['rate']:g}/s p95 {row['p95 ms']:g} ms)  {row['about']}"
    )


def beside(rows: Sequence[Row], policies: Sequence[str]) -> str:
    """Several policies: a line each, and how often each is within 5 % where the first is not."""
    lines = []
    for policy in policies:
        shares = [
            f"{name} {s['within 2']:.0f} / {s['within 5']:.0f}"
            for name, s in [(name, summary(some, policy)) for name, some in groups(rows)]
            if name in TOTALS
        ]
        better, less = (
            sum(within(row, a, 5) and not within(row, b, 5) for row in rows)
            for a, b in ((policy, policies[0]), (policies[0], policy))
        )
        s = summary(rows, policy)
        lines.append(
            f"{', '.join(shares)}; worst {s['worst rate']:+.1f} {s['worst p95']:+.1f};"
            f" mean {s['mean rate']:+.1f} {s['mean p95']:+.1f}; within 5 % where the first is"
            f" not {better}, not where it is {less}: {policy}"
        )
    return "\n".join(lines)


def report(rows: Sequence[Row], policy: str) -> str:
    parts = [by_kind(rows, policy), noise_floor(rows), cold_start(rows, policy), late(rows, policy)]
    lines = [line(row, policy) for row in worst(rows, policy)]
    return "\n".join([part for part in parts if part] + ["the worst:", *lines])
