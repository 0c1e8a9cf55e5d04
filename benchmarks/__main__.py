"""Run the benchmarks that need nothing but wrk, and keep their figures: `make bench`, about twenty
minutes. The others are commands of their own: adaptive, batching, dashboard, faults, files, fronts,
full_batches, hostile, llm, llm_against, llm_engines, llm_first_token, llm_http, llm_memory,
load_client, peers, ray, restarts, s2.
"""

from __future__ import annotations

import subprocess
import sys

from benchmarks.harness import ROOT

NAMES = (
    "process_handover",
    "local_calls",
    "policy_cost",
    "mixed_lengths",
    "overload",
    "startup",
    "s3",
    "triton_python",
)


def main() -> None:
    for name in NAMES:
        path = ROOT / "benchmarks" / "results" / f"{name}.json"
        command = [sys.executable, "-m", f"benchmarks.{name}", "--json", str(path)]
        subprocess.run(command, cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
