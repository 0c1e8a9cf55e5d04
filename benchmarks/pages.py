"""Write the figures of benchmarks/results into the pages that show them.

    python -m benchmarks.pages [--check]     # --check: exit code 1 if a page has other figures

A page says where, and which columns of which file (a part of it: NAME.PART), each with its head:

    <!-- figures of llm_int8: what = weights, tokens_per_cpu_s = tokens per CPU-second -->
    <!-- end of figures -->

The pages about peers and batching have writers of their own.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.batching import page as batching_page
from benchmarks.frameworks import picture as frameworks
from benchmarks.harness import ROOT
from benchmarks.peers import page as peers_page
from benchmarks.peers import picture

RESULTS: Final = ROOT / "benchmarks" / "results"
DOCS: Final = ROOT / "docs"
BLOCK: Final = re.compile(
    r"(<!-- figures of (\w+)(?:\.(\w+))?: (.+?) -->\n).*?(<!-- end of figures -->)", re.S
)
#: Pages, or parts of them, with writers of their own, and the files that they show.
WRITERS: Final[tuple[tuple[Path, tuple[str, ...], Callable[..., str]], ...]] = (
    (peers_page.PAGE, ("peers",), peers_page.filled),
    (picture.PICTURE, ("peers",), lambda _, record: picture.drawn(record)),
    (frameworks.PICTURE, ("frameworks",), lambda _, record: frameworks.drawn(record)),
    (batching_page.EXPLANATION, ("batching",), batching_page.explained),
    (batching_page.INTERNALS, ("batching", "policy_cost"), batching_page.detailed),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    if not parser.parse_args().check:
        write()
        return 0
    for path in (old := stale()):
        print(f"{path.relative_to(ROOT)} has other figures; run: python -m benchmarks.pages")
    return 1 if old else 0


def write() -> None:
    """Write all pages, and draw the pictures."""
    for path, text in texts().items():
        path.write_text(text, encoding="utf-8")
    if _there("batching"):
        batching_page.draw(result("batching"))


def stale() -> list[Path]:
    """The pages whose figures are not those of the files; pictures of simulations left out."""
    return [path for path, text in texts().items() if path.read_text(encoding="utf-8") != text]


def written() -> list[Path]:
    """All that `write` may write."""
    return [*_with_blocks(), *(path for path, *_ in WRITERS), *batching_page.PICTURES]


def texts() -> dict[Path, str]:
    """Each page as it should be; a part whose file is missing is left as it is."""
    found = {}
    for path in _with_blocks():
        found[path] = BLOCK.sub(filled, path.read_text(encoding="utf-8"))
    for path, names, fill in WRITERS:
        if _there(*names):
            text = found.get(path) or path.read_text(encoding="utf-8")
            found[path] = fill(text, *map(result, names))
    return found


def result(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def _there(*names: str) -> bool:
    return all((RESULTS / f"{name}.json").exists() for name in names)


def _with_blocks() -> list[Path]:
    return [path for path in sorted(DOCS.rglob("*.md")) if BLOCK.search(path.read_text("utf-8"))]


def filled(found: re.Match[str]) -> str:
    """A block with the figures of its file."""
    begin, name, part, columns, end = found.groups()
    if not _there(name):
        return f"{begin}\nNot measured this time: `{name}`.\n\n{end}"
    record = result(name)
    named = [column.split(" = ") for column in columns.split("; ")]
    rows = [
        {pair[-1].strip(): row.get(pair[0].strip(), "") for pair in named}
        for row in _rows(record, part)
    ]
    rows = [row for row in rows if any([*row.values()][1:])]  # others have no figure here
    return f"{begin}\n{table(rows)}\n\n{where(record)}\n\n{end}"


def _rows(record: dict[str, Any], part: str | None = None) -> list[dict[str, Any]]:
    of = record["parts"][part] if part else record
    rows: list[dict[str, Any]] = of.get("summary") or of.get("rows") or []
    return rows


def where(record: dict[str, Any]) -> str:
    """What stands below a table: its day, commit, machine and command."""
    command = record["command"].partition(" --json")[0]
    return (
        f"{record['when'][:10]} at {record['commit']}, {record['cores']} cores of"
        f" {record['processor']}: `{command}`."
    )


def table(rows: Sequence[dict[str, Any]]) -> str:
    head = list(dict.fromkeys(name for row in rows for name in row))
    lines = [
        head,
        ["---"] * len(head),
        *([shown(row.get(name, "")) for name in head] for row in rows),
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def shown(value: object) -> str:
    """A figure with the digits that may mean something."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


if __name__ == "__main__":
    sys.exit(main())
