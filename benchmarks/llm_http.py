"""How does a language model answer over HTTP: tokens/s, first token, the gap between tokens, CPU?

    python -m benchmarks.llm_http [--json benchmarks/results/llm_http.json] [--checkpoint FOLDER]
    python -m benchmarks.llm_http --shares 0,0.5,0.67,0.8,1 [--callers 8] [--words 20-400w]

`wherry serve llm:...` and `wherry bench` on the same machine: chats of 40 words, all different,
streamed, 64 tokens at most, by 1, 4 and 16 callers in a loop; then Poisson arrivals at half of the
rate that 16 callers reached. The server's CPU time is that of all its processes.

`--shares` compares values of `prompt_share`: one server with a model for each, asked in turns by
the same callers in a loop, so that a machine that gets slower gets slower for all. Ratios of one
run count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, arguments, report, server
from benchmarks.llm import checkpoint_of_the_package

Row = dict[str, Any]

SAME = ("--length", "40w")
CALLERS = (1, 4, 16)
TITLE = "chats over HTTP, SmolLM2-135M, float32, 64 tokens at most"


def measure(url: str, seconds: float, *load: str) -> dict[str, Any]:
    """One point of `wherry bench`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        command = [sys.executable, "-m", "wherry", "bench", url, "--protocol", "chat", "--quiet"]
        command += ["--max-tokens", "64", "--duration", f"{seconds}s"]
        command += ["--warmup", "3s", "--json", str(path), *load]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        (point,) = json.loads(path.read_text())["points"]
    return dict(point)


def row(what: str, point: dict[str, Any]) -> Row:
    figures = point["figures"]
    first, gap = figures["first_token"], figures["inter_token"]
    tokens = figures["tokens_out_per_second"]
    return {
        "what": what,
        "tokens/s": tokens,
        "requests/s": figures["requests_per_second"],
        "failed": figures["failed"],
        "first token p50 ms": 1e3 * first["p50"],
        "p95 ms": 1e3 * first["p95"],
        "gap p50 ms": 1e3 * gap["p50"],
        "gap p95 ms": 1e3 * gap["p95"],
        "gap p99 ms": 1e3 * gap["p99"],
        "server CPU ms/token": 1e3 * point["server_cores"] / tokens,
    }


def shares(checkpoint: Path, values: list[str], options: argparse.Namespace) -> list[Row]:
    """A row for each value of `prompt_share`: medians of the rounds."""
    targets = [f"llm:{checkpoint}?name=s{v}&prompt_share={v}&cache_gb=0.4" for v in values]
    seen: dict[str, list[Row]] = {value: [] for value in values}
    load = ("--callers", str(options.callers), "--length", options.words)
    with server(*targets) as (url, _):
        for number in range(options.rounds):
            for value in values if number % 2 else reversed(values):
                point = measure(url, options.seconds, "--model", f"s{value}", *load)
                seen[value].append(row(f"prompt_share {value}", point))
                print(seen[value][-1], file=sys.stderr, flush=True)
    return [
        {
            "what": rows[0]["what"],
            **{
                name: statistics.median(r[name] for r in rows) for name in rows[0] if name != "what"
            },
        }
        for rows in seen.values()
    ]


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(seconds=40.0)
    parser.add_argument("--shares", help="values of prompt_share, with commas between them")
    parser.add_argument("--callers", type=int, default=8, help="with --shares")
    parser.add_argument("--words", default="20-400w", help="with --shares: how long prompts are")
    parser.add_argument("--checkpoint", type=Path, help="a folder as save_pretrained writes it")
    options = parser.parse_args()
    checkpoint = options.checkpoint or checkpoint_of_the_package()
    if options.shares:
        rows = shares(checkpoint, options.shares.split(","), options)
        report("shares of a step for prompts, SmolLM2-135M, float32", rows, options.json)
        return
    rows = []
    with server(f"llm:{checkpoint}") as (url, _):
        for callers in CALLERS:
            point = measure(url, options.seconds, *SAME, "--callers", str(callers))
            rows.append(row(f"{callers} callers", point))
        half = 0.5 * rows[-1]["requests/s"]
        point = measure(url, options.seconds, *SAME, "--rate", f"{half:.2f}")
        rows.append(row(f"Poisson, {half:.2f} requests/s", point))
    report(TITLE, rows, options.json)


if __name__ == "__main__":
    main()
