"""What if a model returns what cannot be sent?"""

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from wherry.testing import running_server

if sys.platform == "win32":
    pytest.skip("worker processes need a Unix system", allow_module_level=True)

pytestmark = pytest.mark.full

MODELS = """
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

import msgspec
import numpy as np

import wherry


@dataclass(frozen=True)
class Key:
    a: int = 1


def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


itself = {}
itself["itself"] = itself
ROWS = {
    "good": {1: 2, "a": [3]},
    "long double": np.longdouble(0.1),
    "long doubles": np.zeros(2, np.longdouble),
    "holds itself": itself,
    "object": object(),
    "large integer": 2**70,
    "surrogate": "\\ud800",
    "deep": nested(100_000),
    "object as key": {Key(): 1},
    "date": datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
    "extension": msgspec.msgpack.Ext(5, b"a"),
    "raw": msgspec.Raw(b"\\xc1"),
    "cut": msgspec.Raw(b"\\x93\\x01"),
    "masked": np.ma.masked_array([1, 2], [0, 1]),
    "masked constant": np.ma.masked,
    **{f"depth {n}": nested(n) for n in range(930, 1000)},
}


class Thread(wherry.Model):
    isolation = "thread"
    max_batch_size = 4

    def execute(self, x: list[str]) -> list[dict]:
        return [{"v": ROWS[name]} for name in x]


class Process(Thread):
    isolation = "process"


class ThreadSteps(wherry.StepModel):
    isolation = "thread"

    def start(self, x: str) -> str:
        return x

    def step(self, active: list[str]) -> list[wherry.Step[dict]]:
        return [wherry.Step([{"v": ROWS[name]}], done=True) for name in active]


class ProcessSteps(ThreadSteps):
    isolation = "process"


class ThreadStream(wherry.Model):
    isolation = "thread"
    max_batch_size = 4

    def execute(self, x: list[str]) -> Iterator[list[dict]]:
        yield [{"v": ROWS[name]} for name in x]


class ProcessStream(ThreadStream):
    isolation = "process"
"""
#: What msgpack cannot read is not looked through for the output to blame.
WITHOUT_OUTPUT = ["raw", "cut"]
BAD = [
    *(
        "long double",
        "long doubles",
        "holds itself",
        "object",
        "large integer",
        "surrogate",
        "deep",
    ),
    *("object as key", "date", "extension", "masked", "masked constant", *WITHOUT_OUTPUT),
]
CLASSES = ["Thread", "Process", "ThreadStream", "ProcessStream", "ThreadSteps", "ProcessSteps"]
MODEL_NAMES = [
    *("thread", "process", "thread_stream", "process_stream"),
    *("thread_steps", "process_steps"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("models")
    (folder / "unsendable.py").write_text(MODELS)
    with running_server(*[f"unsendable:{name}" for name in CLASSES], cwd=str(folder)) as url:
        yield url


def answer(server: str, model: str, row: str) -> tuple[int, str]:
    way = "generate" if model in ("thread", "process") else "generate_stream"
    request = urllib.request.Request(
        f"{server}/v2/models/{model}/{way}",
        json.dumps({"x": row}).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def restarts(server: str) -> list[str]:
    with urllib.request.urlopen(f"{server}/metrics", timeout=60) as response:
        lines = response.read().decode().splitlines()
    return [line.split()[-1] for line in lines if line.startswith("wherry_worker_restarts_total{")]


@pytest.mark.parametrize(
    ("model", "row"),
    [
        (model, row)
        for model in MODEL_NAMES
        for row in BAD
        if model != "process_steps" or row not in WITHOUT_OUTPUT  # nor known is whose row it is
    ],
)
def test_an_error_names_what_cannot_be_sent_and_the_worker_lives(
    server: str, model: str, row: str
) -> None:
    status, text = answer(server, model, row)
    assert status == 500
    assert f"model '{model}' returned what cannot be sent" in text
    assert "output 'output'" in text or (row in WITHOUT_OUTPUT and model == "process")
    status, text = answer(server, model, "good")
    assert status == 200
    assert '{"1":2,"a":[3]}' in text
    assert set(restarts(server)) == {"0"}


@pytest.mark.parametrize("model", MODEL_NAMES)
def test_no_depth_is_an_internal_error_or_costs_a_worker(server: str, model: str) -> None:
    answers = [answer(server, model, f"depth {n}") for n in range(930, 1000)]
    assert {status for status, _ in answers} == {200, 500}
    bad = [text for _, text in answers if "error" in text]
    assert all(f"model '{model}'" in text for text in bad)
    assert all("deep" in text or "depth" in text for text in bad)
    assert set(restarts(server)) == {"0"}
