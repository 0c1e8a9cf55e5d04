"""How long does the first caller of a model that sleeps wait, beside what its load takes?

    python -m benchmarks.first_answers [--rounds 5] [--json FILE]

Three real models of `make demo-models`, each in a worker process, take turns with another one that
has the rest of the device. One caller, nothing else: what is beyond the load is the swap's own.
"""

from __future__ import annotations

import os
import tempfile
import time
from statistics import median

import wherry
from benchmarks import harness


class Beside(wherry.Model):
    memory = 200

    def execute(self, x: int) -> int:
        return x


def first_answer(runtime: wherry.Runtime, name: str) -> tuple[float, float]:
    """Seconds of the first answer after a sleep, and of the load in it."""
    runtime.infer("beside", x=1)
    while runtime.model(name).runner.residence()["state"] != "asleep":
        time.sleep(0.01)
    before = runtime.model(name).runner.residence()["waking_seconds"]
    began = time.perf_counter()
    if name == "chat":
        next(runtime.stream(name, prompt="Hi", parameters={"max_tokens": 1}))
    else:
        runtime.infer(name, text="what a lovely day")
    took = time.perf_counter() - began
    while (state := runtime.model(name).runner.residence())["state"] != "ready":
        time.sleep(0.01)
    return took, state["waking_seconds"] - before


def main() -> None:
    parser = harness.arguments(__doc__)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        from examples.many_models import app

        with wherry.Runtime(device_memory={"cpu": 300}) as runtime:
            runtime.load(Beside())
            for model in (app.sentiment, app.embed, app.chat):
                runtime.load(model, memory=200, isolation="process")
                found = [first_answer(runtime, model.name) for _ in range(options.rounds)]
                rows.append({
                    "what": model.name,
                    "first answer s": median(took for took, _ in found),
                    "load s": median(load for _, load in found),
                    "ratio": median(took / load for took, load in found),
                    "most": max(took / load for took, load in found),
                })  # fmt: skip
    harness.report("the first answer of a sleeping model", rows, options.json)


if __name__ == "__main__":
    main()
