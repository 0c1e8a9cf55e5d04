"""frontends/v2/traces.py: the times of the requests that are traced are in Triton's files."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

import wherry
from tests.fakes import PATIENCE
from wherry.frontends.v2.common import Common
from wherry.frontends.v2.settings import TraceSettings
from wherry.values.reply import Reply
from wherry.values.request import InferResponse

CORE = [
    "REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START",
    "COMPUTE_END", "REQUEST_END",
]  # fmt: skip


@wherry.model(max_batch_size=1)
def shout(text: list[str]) -> list[str]:
    return [f"{one}!" if one != "?" else str(1 // 0) for one in text]


def traced(common: Common, *texts: str) -> None:
    """Ask a model, as a frontend does it."""
    with wherry.Runtime(shout) as runtime:
        loaded = runtime.model("shout")
        for text in texts:
            settled = Settled()
            request = loaded.request({"text": [text]}, 1, settled, id=text)
            if common.traces.settings.on:
                common.traces.follow(loaded, request, runtime.clock)
            loaded.submit([request])
            settled.wait()
    common.traces.close()


class Settled(Reply[InferResponse]):
    def __init__(self) -> None:
        self._event = threading.Event()
        super().__init__(lambda _: self._event.set())

    def wait(self) -> None:
        assert self._event.wait(PATIENCE)


def read(path: Path) -> list[Any]:
    found: list[Any] = json.loads(path.read_text())
    return found


def test_a_trace_has_its_request_and_its_moments_in_order(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    common = Common(
        trace_settings=TraceSettings([f"triton,file={path}", "level=TIMESTAMPS", "rate=1"])
    )
    traced(common, "a", "?")

    head, times, _, failed = read(path)
    assert head == {"id": 1, "model_name": "shout", "model_version": 1, "request_id": "a"}
    assert times["id"] == 1
    assert [stamp["name"] for stamp in times["timestamps"]] == CORE
    moments = [stamp["ns"] for stamp in times["timestamps"]]
    assert moments[1:6] == sorted(moments[1:6])
    assert moments[0] <= moments[-1]
    assert failed["timestamps"][-1]["name"] == "REQUEST_END"


def test_one_in_so_many_is_traced_and_no_more_than_so_many(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    config = [f"triton,file={path}", "level=TIMESTAMPS", "rate=2", "count=2"]
    common = Common(trace_settings=TraceSettings(config))
    traced(common, *"abcdefgh")

    assert [entry["request_id"] for entry in read(path) if "request_id" in entry] == ["b", "d"]
    assert common.trace_settings.values()["trace_count"] == "0"
    common.trace_settings.update({"trace_count": None})
    assert common.trace_settings.values()["trace_count"] == "2"


def test_after_so_many_traces_a_file_is_complete_and_the_next_begins(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    config = [f"triton,file={path}", "level=TIMESTAMPS", "rate=1", "triton,log-frequency=2"]
    traced(Common(trace_settings=TraceSettings(config)), *"abc")

    assert [entry["id"] for entry in read(tmp_path / "trace.0")] == [1, 1, 2, 2]
    assert [entry["id"] for entry in read(tmp_path / "trace.1")] == [3, 3]


def test_a_model_may_be_traced_alone(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    common = Common(trace_settings=TraceSettings([f"triton,file={path}", "rate=1"]))
    assert not common.traces.settings.on
    common.trace_settings.update({"trace_level": ["TIMESTAMPS"]}, "other")
    assert common.traces.settings.on
    traced(common, "a")
    assert not path.exists()
    common.trace_settings.update({"trace_level": ["TIMESTAMPS"]}, "shout")
    traced(common, "b")
    assert len(read(path)) == 2


def test_without_a_file_nothing_is_traced(tmp_path: Path) -> None:
    common = Common(trace_settings=TraceSettings(["level=TIMESTAMPS", "rate=1"]))
    assert not common.traces.settings.on
    traced(common, "a")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_told_and_harms_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = [f"triton,file={tmp_path}/nobody/trace", "level=TIMESTAMPS", "rate=1"]
    traced(Common(trace_settings=TraceSettings(config)), "a")
    assert "traces cannot be written" in caplog.messages
