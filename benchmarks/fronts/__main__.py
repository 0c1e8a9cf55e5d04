"""What do fronts cost and bring?

    python -m benchmarks.fronts [--parts fronts,apart,batches,link] [--json PATH]

| part | |
|---|---|
| fronts | `--fronts 2` beside one process, wrk with 64 connections on the same cores |
| apart | the same, the load on other processors than the servers |
| batches | how full the batches of a simulated device are, with two fronts and with none |
| link | CPU us of a row on the link between a front and an owner, above a call in one process |

A goal stands in brackets in the name of its column. What is compared takes turns, in an order drawn
for each round; ratios are taken round by round, and their interval is where the true median lies
with 90 % and more (from five rounds). The simulated device takes 5 ms and 0.2 ms a row, at most 32.
Each part takes less than three minutes.
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks import harness
from benchmarks.fronts.batches import batches
from benchmarks.fronts.link import link
from benchmarks.fronts.served import apart, fronts

PARTS = {
    "fronts": (fronts, "requests/s and CPU us a request, 64 connections"),
    "apart": (apart, "the same, the load on other processors than the servers"),
    "batches": (batches, "batches of a simulated device"),
    "link": (link, "CPU us of a row on the link"),
}


def main() -> None:
    parser = harness.arguments(__doc__)
    parser.set_defaults(rounds=5)
    parser.add_argument("--parts", default=",".join(PARTS), help="which of them [%(default)s]")
    options = parser.parse_args()
    names = options.parts.split(",")
    if unknown := set(names) - set(PARTS):
        parser.error(f"--parts {','.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    parts: dict[str, Any] = {}
    for name in names:
        measure, title = PARTS[name]
        rows = list(measure(options.rounds, options.seconds))
        harness.report(title, rows, None)
        parts[name] = {"title": title, "rows": rows}
    if options.json is not None:
        record = {**harness.facts(), "title": "Fronts, and the owner behind them", "parts": parts}
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
