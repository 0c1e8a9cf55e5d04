"""What do the runs say? Medians, ratios with their intervals, and the tables made of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import comb
from statistics import median
from typing import Any, TypedDict

Run = dict[str, float]

#: An interval holds the true median at least this often, if there are runs enough: five.
CONFIDENCE = 0.90


class Measured(TypedDict, total=False):
    """One peer in one cell: the runs of all rounds, or why there are none."""

    runs: list[Run]
    why_not: str


class CellResult(TypedDict):
    cell: str
    ideal: float | None
    peers: dict[str, Measured]


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Where the true median lies, by the sign test: nothing is assumed about the noise.

    With fewer than five values, the smallest and the largest.
    """
    ordered, count = sorted(values), len(values)
    left_out, outside = 0, 2 / 2**count
    while left_out + 1 < count / 2:
        outside += 2 * comb(count, left_out + 1) / 2**count
        if 1 - outside < CONFIDENCE:
            break
        left_out += 1
    return ordered[left_out], ordered[-1 - left_out]


def ratio(result: CellResult, of: str, to: str, key: str = "cpu_us") -> str:
    """`of` as a share of `to`, round by round: the median, and its interval."""
    pairs = zip(runs(result, of), runs(result, to), strict=False)
    ratios = [mine[key] / theirs[key] for mine, theirs in pairs if theirs[key]]
    if not ratios:
        return ""
    low, high = median_interval(ratios)
    return f"{median(ratios):.2f} ({low:.2f}-{high:.2f})"


def runs(result: CellResult, peer: str) -> list[Run]:
    """None if the peer is not there, or could not run the cell."""
    return result["peers"].get(peer, {}).get("runs", [])


def rows(result: CellResult, base: str) -> list[dict[str, Any]]:
    """One line for each peer of a cell; "x base" is its CPU time as a share of the base's."""
    lines = []
    for peer, measured in result["peers"].items():
        row: dict[str, Any] = {"cell": result["cell"], "peer": peer}
        if not (found := measured.get("runs")):
            lines.append(row | {"CPU us": measured.get("why_not", "")})
            continue
        middle = {key: median(run[key] for run in found) for key in found[0]}
        low, high = median_interval([run["cpu_us"] for run in found])
        row |= {
            "CPU us": f"{middle['cpu_us']:.0f} ({low:.0f}-{high:.0f})",
            f"x {base}": ratio(result, peer, base) if peer != base else "1",
            "requests/s": f"{middle['rate']:.0f}",
            "p50 ms": f"{middle['p50_ms']:.2f}",
            "p99 ms": f"{middle['p99_ms']:.2f}",
            "foreign": f"{middle['foreign']:.2f}",
            "errors": f"{sum(run['errors'] for run in found):.0f}",
        }
        if result["ideal"]:
            row["of ideal"] = f"{middle['rate'] / result['ideal']:.0%}"
        lines.append(row)
    return lines


def across(result: CellResult, peers: Sequence[str]) -> dict[str, Any]:
    """A cell in one line: CPU time of each of the peers that ran it, and the first's as a share of
    the others'; then p50 and p99, and the share of the ideal.
    """
    subject = peers[0]
    _, _, name = result["cell"].partition("/")
    row: dict[str, Any] = {"cell": name}
    for peer in peers:
        row[f"{peer}, CPU us"] = _middle(result, peer, "cpu_us", ".0f")
    for peer in peers[1:]:
        row[f"{subject} / {peer}"] = ratio(result, subject, peer)
    for key, digits in (("p50_ms", ".2f"), ("p99_ms", ".1f")):
        row[f"{key.replace('_', ' ')}"] = " / ".join(
            _middle(result, peer, key, digits) or "-" for peer in peers
        )
    if ideal := result["ideal"]:
        row["of the ideal"] = " / ".join(
            f"{median(run['rate'] for run in found) / ideal:.0%}" if found else "-"
            for found in (runs(result, peer) for peer in peers)
        )
    return row


def _middle(result: CellResult, peer: str, key: str, digits: str) -> str:
    found = runs(result, peer)
    return format(median(run[key] for run in found), digits) if found else ""


def markdown(rows: Iterable[dict[str, Any]]) -> str:
    """Rows as a table, its columns in the order in which they first come."""
    rows = list(rows)
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = [columns, ["---"] * len(columns)]
    lines += [[str(row.get(column, "")) for column in columns] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
