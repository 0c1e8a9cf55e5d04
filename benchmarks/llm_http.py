"""How does a language model answer over HTTP: tokens/s, first token, the gap between tokens, CPU?

    python -m benchmarks.llm_http [--json benchmarks/results/llm_http.json] [--checkpoint FOLDER]

`wherry serve llm:...` and `wherry bench` on the same machine: chats of 40 words, all different,
streamed, 64 tokens at most, by 1, 4 and 16 callers in a loop; then Poisson arrivals at half of the
rate that 16 callers reached. The server's CPU time is that of all its processes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, arguments, report, server
from benchmarks.llm import checkpoint_of_the_package

CALLERS = (1, 4, 16)
TITLE = "chats over HTTP, SmolLM2-135M, float32, 64 tokens at most"


def measure(url: str, seconds: float, *load: str) -> dict[str, Any]:
    """One point of `wherry bench`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        command = [sys.executable, "-m", "wherry", "bench", url, "--protocol", "chat", "--quiet"]
        command += ["--length", "40w", "--max-tokens", "64", "--duration", f"{seconds}s"]
        command += ["--warmup", "3s", "--json", str(path), *load]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        (point,) = json.loads(path.read_text())["points"]
    return dict(point)


def row(what: str, point: dict[str, Any]) -> dict[str, Any]:
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
        "server CPU ms/token": 1e3 * point["server_cores"] / tokens,
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(seconds=40.0)
    parser.add_argument("--checkpoint", type=Path, help="a folder as save_pretrained writes it")
    options = parser.parse_args()
    checkpoint = options.checkpoint or checkpoint_of_the_package()
    rows = []
    with server(f"llm:{checkpoint}") as (url, _):
        for callers in CALLERS:
            point = measure(url, options.seconds, "--callers", str(callers))
            rows.append(row(f"{callers} callers", point))
        half = 0.5 * rows[-1]["requests/s"]
        point = measure(url, options.seconds, "--rate", f"{half:.2f}")
        rows.append(row(f"Poisson, {half:.2f} requests/s", point))
    report(TITLE, rows, options.json)


if __name__ == "__main__":
    main()
