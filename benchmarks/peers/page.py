"""What do the results of benchmarks.peers say? Fills the tables of docs/explanation/performance.md.

    python -m benchmarks.peers.page [benchmarks/results/peers.json]...
    python -m benchmarks.peers.page --print wherry,e0,Triton PATH    # for other peers, on stdout

Of a cell that is in several files the last one counts.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT
from benchmarks.peers import table

RESULTS = ROOT / "benchmarks" / "results" / "peers.json"
PAGE = ROOT / "docs" / "explanation" / "performance.md"
BEGIN, END = "<!-- figures: python -m benchmarks.peers.page -->", "<!-- end of figures -->"

#: What the page compares; the first is compared with the others.
PEERS = ("wherry", "Triton", "MOSEC", "minimal")
TITLES = {
    "v2": "Models written for Triton's Python backend, 16 numbers: `alone` one at a time,"
    " `echo` in batches of up to 32",
    "big": "600 KB in and out",
    "function": "Functions of texts: `single` one at a time, `echo` in batches of up to 32; in a"
    " process, or in a thread of wherry's (beside the others' processes)",
    "device": "A simulated device: 5 ms and 0.2 ms a row, up to 32 rows, in a process",
    "s3": "Batches of up to 4, delay 10 ms; in a process, or in a thread of wherry's",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="*", type=Path, default=[RESULTS])
    parser.add_argument("--print", metavar="PEER,..", help="print the tables of these peers")
    options = parser.parse_args()
    records = [json.loads(path.read_text()) for path in options.results]
    if options.print:
        print(tables(records, options.print.split(",")))
        return
    PAGE.write_text(filled(PAGE.read_text(), *records))


def filled(text: str, *records: dict[str, Any]) -> str:
    """The page with the tables of these records."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    shown = tables(records, PEERS, ends_only=True)
    return f"{before}{BEGIN}\n\n{machine(records)}\n\n{shown}\n{END}{after}"


def machine(records: Sequence[dict[str, Any]]) -> str:
    """Where and when it was measured."""
    commits = sorted({record["commit"] for record in records})
    days = sorted({record["when"][:10] for record in records})
    last = records[-1]
    others = [version for name, version in last["peers"].items() if name in ("Triton", "MOSEC")]
    return (
        f"Measured {' and '.join(days)} at {' and '.join(commits)}, beside {' and '.join(others)},"
        f" on {last['cores']} cores of {last['processor']} with Python {last['python']}; the load"
        " generator takes its share of them. With the fewest and the most callers; what lies"
        " between is in [peers.json](../../benchmarks/results/peers.json)."
    )


def tables(
    records: Sequence[dict[str, Any]], peers: Sequence[str], *, ends_only: bool = False
) -> str:
    """A table for each group of cells; `ends_only`: of the fewest and the most callers."""
    cells: dict[str, table.CellResult] = {
        result["cell"]: result for record in records for result in record["cells"]
    }
    parts = []
    for group, title in TITLES.items():
        results = [cell for name, cell in cells.items() if name.split("/")[0] == group]
        if ends_only:
            ways = [result["cell"].rpartition("/")[0] for result in results]
            results = [
                result
                for at, (result, way) in enumerate(zip(results, ways, strict=True))
                if way not in ways[:at] or way not in ways[at + 1 :]
            ]
        if results:
            able = [peer for peer in peers if any(table.runs(r, peer) for r in results)]
            rows = [table.across(result, able) for result in results]
            parts.append(f"## {title}\n\n{table.markdown(rows)}")
    return "\n".join(parts)


if __name__ == "__main__":
    main()
