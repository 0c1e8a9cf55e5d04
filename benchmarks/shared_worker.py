"""What do models that share one worker process save: memory, and seconds to start?

    python -m benchmarks.shared_worker [--models 10] [--rounds 3] [--json FILE]

A server with small models of torch, each in a worker process of its own and then all in one. RSS
and PSS (which counts what processes share once) are of the whole tree, once each model has
answered; the rounds alternate, and the median counts.
"""

from __future__ import annotations

import json
import tempfile
import time
import urllib.request
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import harness
from benchmarks.startup import rss_mb
from wherry.bench.observe import process_tree
from wherry.testing import ServerProcess

IMPORTS = """
from typing import Annotated

import numpy as np

import wherry

Row = Annotated[np.ndarray, wherry.FP32[64]]
"""
MODEL = """
class Linear{number}(wherry.Model):
    def load(self, device: wherry.Device) -> None:
        import torch

        torch.set_num_threads(1)
        self.linear = torch.nn.Linear(64, 64)

    def execute(self, x: Row) -> Row:
        import torch

        with torch.inference_mode():
            return self.linear(torch.from_numpy(x.copy())).numpy()


linear{number} = Linear{number}()
"""
WAYS = ("process", "shared")


def start(app: Path, models: int, isolation: str) -> dict[str, float]:
    began = time.perf_counter()
    with ServerProcess(str(app), "--isolation", isolation, "--log-level", "warning") as running:
        ready = time.perf_counter() - began
        for number in range(models):
            ask(f"{running.url}/v2/models/linear{number}/infer")
        tree = process_tree(running.pid)
        return {
            "processes": len(tree),
            "ready_s": ready,
            "rss_mb": sum(rss_mb(pid) for pid in tree),
            "pss_mb": harness.memory_mb(running.pid),
        }


def ask(url: str) -> None:
    row = {"name": "x", "datatype": "FP32", "shape": [1, 64], "data": [0.5] * 64}
    body = json.dumps({"inputs": [row]}).encode()
    urllib.request.urlopen(urllib.request.Request(url, body), timeout=60).close()


def run(models: int, rounds: int) -> list[dict[str, Any]]:
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        app = Path(folder) / "linear_app.py"
        app.write_text(IMPORTS + "".join(MODEL.format(number=n) for n in range(models)))
        for _ in range(rounds):
            for way in WAYS:
                found[way].append(start(app, models, way))
    return [
        {
            "what": way,
            "models": models,
            **{key: median(one[key] for one in each) for key in each[0]},
        }
        for way, each in found.items()
    ]


def main() -> None:
    parser = harness.arguments(__doc__)
    parser.add_argument("--models", type=int, default=10)
    args = parser.parse_args()
    harness.report("models that share a worker process", run(args.models, args.rounds), args.json)


if __name__ == "__main__":
    main()
