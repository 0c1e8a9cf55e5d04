"""What do the results of benchmarks.pool say? Two tables of docs/explanation/pools.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from benchmarks.harness import ROOT

PAGE: Final = ROOT / "docs" / "explanation" / "pools.md"
SPREAD: Final = "<!-- figures: spread over replicas -->"
PROMPTS: Final = "<!-- figures: prompts that begin alike -->"
END: Final = "<!-- end of figures -->"
WAYS: Final = ("predicted", "random", "round robin", "least outstanding")
BY: Final = {
    "prediction": "by prediction",
    "beginning": "by beginning",
    "beginning and prediction": "by both",
}
#: The shares of 64 beginnings, by their name in the results.
SHARES: Final = {"k^-0": "equal shares", "k^-1": "the k-th has 1/k", "k^-2": "the first has 60 %"}
#: What the page shows, and how it calls it.
CASES: Final = {
    "2 replicas, 1 fronts, load 80%": "2 replicas, 1 front, 80 % load",
    "8 replicas, 1 fronts, load 80%": "8 replicas, 1 front",
    "8 replicas, 4 fronts, load 80%": "8 replicas, 4 fronts",
    "8 replicas, 16 fronts, load 80%": "8 replicas, 16 fronts",
    "32 replicas, 4 fronts, load 80%": "32 replicas, 4 fronts",
    "100 replicas, 1 fronts, load 80%": "100 replicas, 1 front",
    "100 replicas, 4 fronts, load 80%": "100 replicas, 4 fronts",
    "100 replicas, 16 fronts, load 80%": "100 replicas, 16 fronts",
    "100 replicas, 16 fronts, load 50%": "100 replicas, 16 fronts, 50 % load",
    "one of 2 replicas 5 times slower, 4 fronts, load 70%":
        "one of 2 replicas 5 times slower, 4 fronts, 70 % load",
    "one of 8 replicas 2 times slower, 4 fronts, load 70%": "one of 8 twice as slow",
    "one of 8 replicas 5 times slower, 4 fronts, load 70%": "one of 8 five times slower",
    "8 replicas of four speeds, 4 fronts, load 70%": "8 of four speeds",
    "links of 1 ms, 8 replicas, 4 fronts, load 70%": "8 by links of 1 ms",
    "no batches, 8 replicas, 4 fronts, load 70%": "8, a row at a time, each of another length",
    "one of 8 replicas stops, 4 fronts, load 60%": "one of 8 stops",
    "rows are steps of 500 unequal sequences, 8 replicas, 4 fronts, load 70%":
        "8, steps of 500 unequal sequences",
}  # fmt: skip


def filled(text: str, record: dict[str, Any]) -> str:
    """The page with the tables of this record."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for row in record["rows"]:
        found.setdefault(row["case"], {})[row["way"]] = row
    text = _between(text, SPREAD, ["case", *WAYS], _spread(found))
    return _between(text, PROMPTS, ["prompts", *BY.values()], _prompts(found))


def _spread(found: dict[str, dict[str, dict[str, float]]]) -> Iterator[list[str]]:
    for case, called in CASES.items():
        ways = found[case]
        best = ways["central queue"]
        yield [
            called,
            *(
                " / ".join(f"{ways[way][key] / best[key]:.2f}" for key in ("mean", "p99"))
                if way in ways
                else ""
                for way in WAYS
            ),
        ]


def _prompts(found: dict[str, dict[str, dict[str, float]]]) -> Iterator[list[str]]:
    for power, shares in SHARES.items():
        for rate in (60, 120):
            ways = found[f"{rate} prompts/s, beginnings with shares {power}"]
            told = (f"{1e3 * ways[way]['mean']:,.0f} ({ways[way]['hits']:.0%})" for way in BY)
            yield [f"{rate}/s, {shares}", *told]


def _between(text: str, begin: str, head: list[str], rows: Iterator[list[str]]) -> str:
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(END)
    lines = [head, ["---"] * len(head), *rows]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"{before}{begin}\n\n{table}\n\n{END}{after}"
