"""What do the results say? Fills the figures of the pages about batching, and draws their pictures.

    python -m benchmarks.batching --seed SEED --json benchmarks/results/batching.json
    python -m benchmarks.policy_cost --json benchmarks/results/policy_cost.json
    python -m benchmarks.batching.page

docs/explanation/batching.md gets a small table, docs/internals/batching.md the one by kind.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from benchmarks.batching.judge import AGAIN, GREEDY
from benchmarks.batching.pictures import draw_callers, draw_scenarios, draw_timeline
from benchmarks.batching.tables import Row, groups, share, summary, within
from benchmarks.harness import ROOT

RESULTS = ROOT / "benchmarks" / "results"
INTERNALS = ROOT / "docs" / "internals" / "batching.md"
EXPLANATION = ROOT / "docs" / "explanation" / "batching.md"
PICTURES = tuple(
    INTERNALS.parent / f"batching-{name}.svg" for name in ("callers", "timeline", "held-out")
)
BEGIN, END = "<!-- figures: python -m benchmarks.batching.page -->", "<!-- end of figures -->"


def main() -> None:
    record, costs = (
        json.loads((RESULTS / f"{name}.json").read_text()) for name in ("batching", "policy_cost")
    )
    draw(record)
    EXPLANATION.write_text(explained(EXPLANATION.read_text(), record))
    INTERNALS.write_text(detailed(INTERNALS.read_text(), record, costs))


def draw(record: dict[str, Any]) -> None:
    """Draw the pictures: two of simulations, one of the record."""
    callers, timeline, scenarios = PICTURES
    draw_callers(callers)
    draw_timeline(timeline)
    draw_scenarios(scenarios, record["rows"], record["policies"][0])


def explained(page: str, record: dict[str, Any]) -> str:
    """The page of the explanation with the record's figures."""
    return fill(page, held_out(record["rows"], record["policies"][0], record["seed"]))


def detailed(page: str, record: dict[str, Any], costs: dict[str, Any]) -> str:
    """The page of the internals with both records' figures."""
    rows, policy = record["rows"], record["policies"][0]
    parts = [by_kind(rows, policy), processor_time(costs["rows"])]
    return fill(page, "\n\n".join(parts))


def fill(page: str, figures: str) -> str:
    """Replace the marked part of a page."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{figures}\n\n{END}{after}"


def held_out(rows: Sequence[Row], policy: str, seed: int) -> str:
    """One instance, several, all: the policy and greedy."""
    wanted = {
        "instances 1": "one instance",
        "instances 2 to 8": "two to eight instances",
        "all": "all",
    }
    kinds = dict(groups(rows))
    body = []
    for name, called in wanted.items():
        for who, whose in (("self-tuning", policy), ("greedy", GREEDY)):
            s = summary(kinds[name], whose)
            body.append(
                [
                    f"{called} ({s['scenarios']})",
                    who,
                    *(f"{s[what]:.0f} %" for what in ("within 2", "within 5")),
                    *(f"{s[what]:+.0f} %" for what in ("worst rate", "worst p95")),
                ]
            )
    head = ["scenarios", "policy", "within 2 %", "within 5 %", "worst throughput", "worst p95"]
    floor = share(rows, lambda row: within(row, AGAIN, 5))
    return (
        f"{table(head, body)}\n\n{len(rows)} scenarios of seed {seed}. Within: throughput not"
        " lower and 95th percentile not higher by more. The best pair itself, run again with other"
        f" noise of the device, is within 5 % in {floor:.0f} %."
    )


def by_kind(rows: Sequence[Row], policy: str) -> str:
    body = []
    for name, some in groups(rows):
        if name.startswith(("all", "instances", "lasting", "behaviour")):
            continue  # explained() has them
        s, g = summary(some, policy), summary(some, GREEDY)
        body.append(
            [
                name,
                f"{s['within 2']:.0f} / {s['within 5']:.0f} %",
                f"{g['within 2']:.0f} / {g['within 5']:.0f} %",
                f"{s['worst rate']:+.0f} %",
                f"{s['worst p95']:+.0f} %",
                f"{s['worse than greedy']:.0f} %",
            ]
        )
    head = ["", "within 2 / 5 %", "greedy", "worst throughput", "worst p95", "worse than greedy"]
    return table(head, body)


def processor_time(found: Sequence[dict[str, Any]]) -> str:
    head = ["", "greedy", "self-tuning", "its longest call"]
    keys = ("what", "greedy us", "self-tuning us", "longest single call us")
    body = [[row[key] for key in keys] for row in found]
    return f"CPU time of the policy for each request, microseconds:\n\n{table(head, body)}"


def table(head: Sequence[str], body: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(str(cell) for cell in row) + " |" for row in lines)


if __name__ == "__main__":
    main()
