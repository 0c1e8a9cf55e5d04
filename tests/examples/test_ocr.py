"""examples/ocr: pages of which every letter is known, read by the chain."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import wherry
from examples.ocr import app, lines
from examples.ocr.page import LINES, photo
from wherry.testing import running_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
MODELS = (app.decode, app.detect, app.cut, app.direction, app.recognise, app.ocr, app.ocr_lines)


@pytest.fixture(scope="module")
def runtime() -> Iterator[wherry.Runtime]:
    with wherry.Runtime(*MODELS) as runtime:
        runtime.infer("ocr", jpeg=photo())  # its thread for pipelines starts with the first
        yield runtime


def letters(lines: Any) -> list[str]:
    """The network does not always see where a word ends."""
    return ["".join(line.split()).lower() for line in lines]


@pytest.mark.parametrize("turned", [0, 3, 180])
def test_every_letter_is_read_also_of_pages_that_lie_askew(
    runtime: wherry.Runtime, turned: int
) -> None:
    page = runtime.infer("ocr", jpeg=photo(turned=turned))
    wanted = letters(LINES)
    assert letters(page["lines"]) == (wanted[::-1] if turned == 180 else wanted)
    assert page["corners"].shape == (len(LINES), 4, 2)
    assert min(page["scores"]) > 0.7


def test_a_page_without_text_has_no_lines(runtime: wherry.Runtime) -> None:
    page = runtime.infer("ocr", jpeg=photo(lines=()))
    assert list(page["lines"]) == []
    assert page["corners"].shape == (0, 4, 2)


def test_lines_come_one_by_one_in_reading_order(runtime: wherry.Runtime) -> None:
    stream = runtime.stream("ocr_lines", jpeg=photo())
    first = next(stream)
    assert letters([first["text"]]) == letters(LINES[:1])
    assert letters(line["text"] for line in stream) == letters(LINES[1:])


def test_a_file_that_is_no_image_fails_alone_among_pages(runtime: wherry.Runtime) -> None:
    together = threading.Barrier(4)

    def ask(file: bytes) -> Any:
        together.wait(60)
        try:
            return letters(runtime.infer("ocr", jpeg=file)["lines"])
        except wherry.InvalidRequest as error:
            return str(error)

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, [photo(), b"no image", photo(seed=1), photo(seed=2)]))
    assert answers.pop(1) == "jpeg: not an image that can be read"
    assert answers == [letters(LINES)] * 3


def test_lines_of_several_pages_share_batches(runtime: wherry.Runtime) -> None:
    image = runtime.infer("decode", jpeg=photo())
    corners = runtime.infer("detect", image=image)
    with wherry.Runtime(app.cut) as fresh:  # it has not learnt yet what company costs

        async def cut_at_once() -> list[Any]:
            calls = (fresh.ainfer("cut", image=image, corners=one) for one in [*corners] * 2)
            return await asyncio.gather(*calls)

        strips = asyncio.run(cut_at_once())
        assert len(strips) == 2 * len(LINES)
        assert max(fresh.model("cut").statistics.batch_sizes) > len(LINES)


def test_a_line_does_not_depend_on_its_company(runtime: wherry.Runtime) -> None:
    image = app.decode([photo()])[0]
    strips = app.cut([image] * len(LINES), app.detect.corners(image))
    alone = [runtime.infer("recognise", strip=strip)["text"] for strip in strips]
    together = [row["text"] for row in runtime.map("recognise", strips)]
    assert together == alone


def test_served_it_reads_the_same_and_says_where_the_time_went() -> None:
    with running_server(str(ROOT / "examples/ocr/app.py")) as url, wherry.Client(url) as client:
        page = client.infer("ocr", jpeg=photo())
        explained = httpx.get(f"{url}/v2/models/ocr/batching", timeout=60).json()
    assert letters(page["lines"]) == letters(LINES)
    calls = {stage["model"]: stage["calls"] for stage in explained["stages"]}
    lines = len(LINES)
    assert calls == {
        "decode": 1, "detect": 1, "cut": lines, "direction": lines, "recognise": lines
    }  # fmt: skip
    (tree,) = explained["latest"]
    assert tree["total_ms"] >= max(call["total_ms"] for call in tree["calls"])


@pytest.mark.full
def test_the_demo_shows_what_was_read_and_the_tree_of_times() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.ocr.demo"],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=380,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("✓") == len(LINES)
    assert "recognise" in done.stdout
    assert "in-process, 8 threads" in done.stdout


def test_turned_rectangles_are_named_from_their_top_left_corner() -> None:
    corners = np.array([[10, 0], [10, 5], [0, 5], [0, 0]], np.float32)
    assert lines.from_top_left(corners).tolist() == [[0, 0], [10, 0], [10, 5], [0, 5]]
