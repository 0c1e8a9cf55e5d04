"""Does `wherry bench` see what wrk sees, and how much more does it cost?

    python -m benchmarks.load_client [--seconds 2] [--rounds 3] [--json PATH]

Both put a closed load on the least server (`benchmarks.peers.minimal`), in turn, so that a noisy
moment meets both; medians of the rounds. "of wrk" is bench's rate as a share of wrk's. Where other
work shares the cores the rates say little; CPU time per request is then what to compare.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import harness
from benchmarks.peers.cells import Cell
from benchmarks.peers.servers import minimal


def bench(
    url: str, body: bytes, connections: int, seconds: float, processes: int
) -> dict[str, float]:
    """One run of `wherry bench`, its figures under wrk's names."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        subprocess.run(
            [sys.executable, "-m", "wherry", "bench", url, "--protocol", "http", "--quiet",
             "--body", body.decode(), "--callers", str(connections), "--processes", str(processes),
             "--duration", str(seconds), "--warmup", "0", "--json", str(report)],
            cwd=harness.ROOT, stdout=subprocess.DEVNULL, check=True,
        )  # fmt: skip
        (point,) = json.loads(report.read_text())["points"]
    figures, latency = point["figures"], point["figures"]["latency"]
    return {
        "rate": figures["requests_per_second"],
        "p50_ms": 1e3 * latency["p50"],
        "p99_ms": 1e3 * latency["p99"],
        "errors": figures["failed"],
        "cpu_us": 1e6 * point["client"]["cores"] * seconds / figures["ok"],
    }


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    options = harness.arguments(__doc__).parse_args()
    rows: list[dict[str, Any]] = []
    server = minimal()
    cell = Cell("", "function", "single", "json", 1)
    request = server.request(cell)
    with server.started(["function"]) as running:
        url = running["function"].url(server, cell)
        for connections, processes in ((1, 1), (16, 1), (64, 1), (64, 2)):
            pairs = []
            for _ in range(options.rounds):
                used = _children_cpu()
                theirs = harness.wrk(
                    url,
                    connections=connections,
                    seconds=options.seconds,
                    body=request.body,
                    headers=request.headers,
                )
                theirs["cpu_us"] = 1e6 * (_children_cpu() - used) / theirs["requests"]
                pairs.append(
                    (theirs, bench(url, request.body, connections, options.seconds, processes))
                )
            wrk = {key: median(pair[0][key] for pair in pairs) for key in pairs[0][0]}
            ours = {key: median(pair[1][key] for pair in pairs) for key in pairs[0][1]}
            rows.append({
                "what": f"c={connections}, processes={processes}",
                "wrk requests/s": wrk["rate"],
                "bench requests/s": ours["rate"],
                "of wrk": median(pair[1]["rate"] / pair[0]["rate"] for pair in pairs),
                "wrk p50 ms": wrk["p50_ms"],
                "bench p50 ms": ours["p50_ms"],
                "wrk p99 ms": wrk["p99_ms"],
                "bench p99 ms": ours["p99_ms"],
                "wrk CPU us": wrk["cpu_us"],
                "bench CPU us": ours["cpu_us"],
                "errors": int(wrk["errors"] + ours["errors"]),
            })  # fmt: skip
    harness.report("wherry bench beside wrk, on the least server", rows, options.json)


if __name__ == "__main__":
    main()
