"""examples/sentiment: the real model, called directly, in-process and by its demo."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wherry
from examples.sentiment import app

ROOT = Path(__file__).parents[2]
SENTENCES = (ROOT / "examples/sentiment/sentences.txt").read_text().splitlines()


@pytest.fixture(scope="module")
def runtime() -> Iterator[wherry.Runtime]:
    with wherry.Runtime(app.sentiment, app.embed, app.review) as runtime:
        runtime.infer("review", text="once")  # its thread for pipelines starts with the first
        yield runtime


@given(st.lists(st.integers(1, 256), max_size=40))
def test_groups_hold_every_row_once_and_little_padding(lengths: list[int]) -> None:
    groups = list(app.similar_lengths(lengths, call_cost=6))
    assert sorted(row for group in groups for row in group) == list(range(len(lengths)))
    for group in groups:
        longest = max(lengths[row] for row in group)
        assert sum(longest - lengths[row] for row in group) <= 6


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("A wonderful, heartfelt film.", "positive"),
        ("Great value, and the battery lasts for days.", "positive"),
        ("A dull mess; I left after twenty minutes.", "negative"),
        ("The battery died in two days and support ignored me.", "negative"),
    ],
)
def test_sentences_get_the_label_a_reader_would_give(
    runtime: wherry.Runtime, text: str, label: str
) -> None:
    row = runtime.infer("sentiment", text=text)
    assert row["label"] == label
    assert (row["score"] >= 0.5) == (label == "positive")


def test_a_row_gets_the_same_answer_alone_and_among_others(runtime: wherry.Runtime) -> None:
    texts = SENTENCES[:40]
    together = [row["score"] for row in runtime.map("sentiment", texts)]
    alone = [runtime.infer("sentiment", text=text)["score"] for text in texts]
    np.testing.assert_allclose(together, alone, atol=1e-4)


def test_alike_sentences_have_alike_vectors(runtime: wherry.Runtime) -> None:
    wish, same, other = (
        runtime.infer("embed", text=text)
        for text in ("I want a refund", "How do I get my money back?", "The cat is asleep.")
    )
    assert np.linalg.norm(wish) == pytest.approx(1, abs=1e-5)
    assert wish @ same > 0.5 > wish @ other


def test_a_review_of_any_length_gets_one_answer_and_a_label_for_each_piece(
    runtime: wherry.Runtime,
) -> None:
    text = " ".join(SENTENCES[:30])
    pieces = wherry.split_text(text, max_chars=300)
    answer = runtime.infer("review", text=text)
    scores = [runtime.infer("sentiment", text=piece)["score"] for piece in pieces]
    assert len(pieces) > len(text) // 300
    assert len(answer["pieces"]) == len(pieces)
    assert answer["score"] == pytest.approx(np.mean(scores), abs=1e-3)
    assert answer["label"] == app.label_of(answer["score"])


def test_a_file_that_is_not_the_expected_one_is_refused() -> None:
    package, path, _ = app.TOKENIZER
    with pytest.raises(ValueError, match="expected 00"):
        app._verified(package, path, "00")


def test_a_package_that_is_missing_is_named_with_the_remedy() -> None:
    with pytest.raises(FileNotFoundError, match="'no_such_package' is not installed; `make demo`"):
        app._verified("no_such_package", "model.onnx", "")


@pytest.mark.full
@pytest.mark.timeout(400)
def test_the_demo_ends_by_itself_and_shows_what_it_promises() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.sentiment.demo"],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for part in ("sentences/s", "p95", "batch size", "in-process", "x slower", "try next"):
        assert part in done.stdout
