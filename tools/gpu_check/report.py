"""What was found, was a goal reached, and how is it told: one JSON file, a table, a page?"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
RESULT: Final = ROOT / "benchmarks" / "results" / "gpu.json"
PAGE: Final = ROOT / "docs" / "internals" / "gpu.md"
START: Final = "<!-- of benchmarks/results/gpu.json, by python -m tools.gpu_check --page -->\n"
END: Final = "<!-- end of it -->"
NOT_YET: Final = (
    "**It has not been run on a GPU yet**: no goal is known to be reached,\n"
    "and no figure in this documentation is one of a GPU.\n"
)


@dataclass(frozen=True, slots=True)
class Goal:
    """A share of what a bare loop of the same run gives, and the least that it is to be."""

    key: str
    what: str
    least: float


GOALS: Final = (
    Goal("texts", "RoBERTa-large's shape, 64 callers over HTTP, of the sorted bare loop", 0.95),
    Goal("rising", "the same, requests per second at more callers of those at fewer", 1.0),
    Goal("batches", "BERT-base's shape, 20 callers x 64 texts, of the bare loop", 0.95),
    Goal("images", "ResNet-50, 64 callers in the process, of the bare loop", 0.95),
    Goal("images_http", "ResNet-50, 64 callers over HTTP, of the bare loop", 0.90),
    Goal("chain", "JPEG chain, 64 callers in the process, of its slower stage", 0.90),
    Goal("decode_1", "decode, 7B shape, 1 stream, of the bandwidth", 0.75),
    Goal("decode_64", "decode, 7B shape, 64 streams, of the bandwidth", 0.65),
    Goal("decode_256", "decode, 7B shape, 256 streams, of a bare loop of a CUDA graph", 0.90),
    Goal("continuous", "16 to 256 streams, of generate_batch() of transformers", 3.0),
    Goal("prompts", "prompts, 7B shape, of the product rate", 0.50),
    Goal("fronts_2", "--fronts 2, of --fronts 1", 1.8),
    Goal("fronts_4", "--fronts 4, of --fronts 1", 3.0),
)


def goals(findings: list[Mapping[str, Any]]) -> Iterator[tuple[Goal, float | None]]:
    """Each goal and its share: the least of those found. None: not measured."""
    for goal in GOALS:
        shares = [one["goals"][goal.key] for one in findings if goal.key in one["goals"]]
        yield goal, min(shares, default=None)


def table(document: Mapping[str, Any]) -> str:
    """What a run found, in Markdown."""
    lines = [f"{document['date']}, commit {document['commit']}: `{document['command']}`"]
    if document["dry_run"]:
        lines.append("**A dry run on a CPU with tiny models: its figures say nothing.**")
    lines.append(", ".join(f"{name} {value}" for name, value in document["machine"].items()))
    lines += ["", "| goal | at least | found | |", "|---|---|---|---|"]
    for goal, share in goals(document["findings"]):
        state = "not measured" if share is None else "reached" if share >= goal.least else "missed"
        found = "" if share is None else f"{share:.2f}"
        lines.append(f"| {goal.what} | {goal.least:g} | {found} | {state} |")
    lines += ["", "| part | seconds | |", "|---|---|---|"]
    lines += [f"| {one['part']} | {one['seconds']} | {one['end']} |" for one in document["parts"]]
    lines += ["", "| what | found |", "|---|---|"]
    for one in document["findings"]:
        found = ", ".join(
            f"{name} {_plain(value)}" for name, value in (one["figures"] | one["goals"]).items()
        )
        lines.append(f"| {one['part']}: {_plain(one['what'])} | {found} |")
    return "\n".join(lines) + "\n"


def _plain(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return " ".join(text.replace("|", "/").split())[:300]


def page(result: Path = RESULT) -> str:
    """docs/internals/gpu.md, with the run that is kept, if one is."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(START)
    after = rest.split(END)[1]
    told = table(json.loads(result.read_text())) if result.exists() else NOT_YET
    return f"{before}{START}{told}{END}{after}"
