"""What does a chain of networks do with several callers at once? `make demo-ocr` shows it.

Serves app.py, sends it photos of pages from 1 and from 8 callers over HTTP, then from 8 threads to
the same models in this process, and shows what was read and where the time went.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.tree import Tree

import wherry
from examples.ocr.page import LINES, photo
from wherry.testing import running_server

APP = Path(__file__).with_name("app.py")
CALLERS, PAGES = 8, 24

console = Console(highlight=False)


def send(infer: Callable[..., Any], pages: list[bytes], callers: int) -> tuple[Any, float, float]:
    """The last answer, pages/s, and the median time of a page in ms."""

    def ask(page: bytes) -> tuple[Any, float]:
        start = time.perf_counter()
        answer = infer("ocr", jpeg=page)
        return answer, time.perf_counter() - start

    with ThreadPoolExecutor(callers) as pool:
        start = time.perf_counter()
        answers = list(pool.map(ask, pages))
        seconds = time.perf_counter() - start
    return answers[-1][0], len(pages) / seconds, 1000 * median(took for _, took in answers)


def get(url: str) -> Any:
    with urllib.request.urlopen(url) as reply:
        return json.load(reply)


def show_tree(span: dict[str, Any], tree: Tree | None = None) -> Tree:
    """A request and its calls; of ten lines that took the same way three are enough."""
    text = (
        f"{span['model']}  [dim]from {span['start_ms']:.0f} ms, took {span['total_ms']:.0f} ms,"
        f" of them {span['queue_ms']:.0f} ms waiting[/dim]"
    )
    branch = Tree(text) if tree is None else tree.add(text)
    shown: dict[str, int] = {}
    for call in span.get("calls", ()):
        shown[call["model"]] = shown.get(call["model"], 0) + 1
        if shown[call["model"]] <= 3:
            show_tree(call, branch)
    left = sum(count - 3 for count in shown.values() if count > 3)
    if left:
        branch.add(f"[dim]and {left} more[/dim]")
    return branch


def show_stages(url: str) -> None:
    table = Table(title="the stages", box=None, pad_edge=False)
    for column in ("model", "calls", "mean ms", "of them waiting", "rows in a batch"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for stage in get(f"{url}/v2/models/ocr/batching")["stages"]:
        (model,) = get(f"{url}/v2/models/{stage['model']}/stats")["model_stats"]
        table.add_row(
            stage["model"],
            str(stage["calls"]),
            f"{stage['mean_total_ms']:.1f}",
            f"{stage['mean_queue_ms']:.1f}",
            f"{model['inference_count'] / max(1, model['execution_count']):.1f}",
        )
    console.print(table, "")


def main() -> None:
    pages = [photo(turned=3 * (n % 2), seed=n) for n in range(PAGES)]
    runs: list[tuple[str, float, float]] = []
    with running_server(str(APP)) as url, wherry.Client(url) as client:
        client.infer("ocr", jpeg=pages[0])
        answer, rate, ms = send(client.infer, pages[: PAGES // 2], 1)
        runs.append(("HTTP, one page at a time", rate, ms))
        tree = show_tree(get(f"{url}/v2/models/ocr/batching")["latest"][0])
        _, rate, ms = send(client.infer, pages, CALLERS)
        runs.append((f"HTTP, {CALLERS} callers", rate, ms))
        console.print("[bold]what it read[/bold]")
        for wanted, got in zip(LINES, answer["lines"], strict=False):
            mark = "✓" if wanted.replace(" ", "") == got.replace(" ", "") else "≠"
            console.print(f"  {mark} {got}")
        console.print("\n[bold]one page, alone[/bold]", tree, "")
        show_stages(url)

    from examples.ocr import app  # only now: onnxruntime takes a moment

    models = (app.decode, app.detect, app.cut, app.direction, app.recognise, app.ocr)
    with wherry.Runtime(*models) as runtime:
        runtime.infer("ocr", jpeg=pages[0])
        _, rate, ms = send(runtime.infer, pages, CALLERS)
        runs.append((f"in-process, {CALLERS} threads", rate, ms))

    table = Table(title="how fast", box=None, pad_edge=False)
    table.add_column("")
    table.add_column("pages/s", justify="right")
    table.add_column("p50 ms", justify="right")
    for name, rate, ms in runs:
        table.add_row(name, f"{rate:.2f}", f"{ms:.0f}")
    console.print(table)


if __name__ == "__main__":
    main()
