"""examples/triton_sentiment: the seed's model and its client loops, with Triton's own client."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gevent
import numpy as np
import pytest
import tritonclient.http as triton

from wherry.testing import running_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

EXAMPLE = Path(__file__).parents[2] / "examples/triton_sentiment"


@pytest.fixture(scope="module", autouse=True)
def _gevent_hub() -> None:
    """tritonclient's connections share one for the whole thread: it is made before any test."""
    gevent.get_hub()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_server(str(EXAMPLE / "models"), "--model-control-mode=explicit",
                        "--load-model=*") as url:  # fmt: skip
        yield url.removeprefix("http://")


def test_tritons_client_gets_labels_and_classes(url: str) -> None:
    client = triton.InferenceServerClient(url)
    text = triton.InferInput("TEXT", [2, 1], "BYTES")
    text.set_data_from_numpy(np.array([[b"what a lovely day"], [b"so dull"]], np.object_))
    scores = triton.InferRequestedOutput("SCORES", class_count=1)
    answer = client.infer("sentiment", [text], outputs=[triton.InferRequestedOutput("LABEL")])
    assert answer.as_numpy("LABEL").tolist() == [[b"positive"], [b"negative"]]
    classes = client.infer("sentiment", [text], outputs=[scores]).as_numpy("SCORES")
    assert [one.split(b":")[1:] for (one,) in classes.tolist()] == [
        [b"1", b"positive"],
        [b"0", b"negative"],
    ]
    client.close()


def test_every_instance_was_warmed_up_before_the_model_was_ready(url: str) -> None:
    client = triton.InferenceServerClient(url)
    config = client.get_model_config("sentiment")
    assert config["model_warmup"][0]["name"] == "a sentence"
    assert client.is_model_ready("sentiment")
    client.close()


@pytest.mark.full
def test_the_seeds_loops_run_and_no_batch_is_too_large(url: str) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / "client.py"), "--url", url],
        capture_output=True,
        text=True,
        timeout=380,
    )
    assert done.returncode == 0, done.stderr
    sizes = [
        int(part.split(" x ")[1])
        for line in done.stdout.splitlines()
        if "batches:" in line
        for part in line.split("batches: ")[1].split(", ")
    ]
    assert max(sizes) <= 10
    assert done.stdout.count(" in a request") == 5
    assert "delay of 0.2 s" in done.stdout
