"""server/calls/traces.py: the times of the requests that are traced are in Triton's files."""

import json
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import wherry
from tests.fakes import TIMEOUT
from wherry.core.values.reply import Reply
from wherry.core.values.request import InferResponse
from wherry.server.calls.settings import TraceSettings
from wherry.server.v2.common import Common

CORE = [
    "REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START",
    "COMPUTE_END", "REQUEST_END",
]  # fmt: skip
OF_HTTP = [
    "HTTP_RECV_START", "HTTP_RECV_END", *CORE, "INFER_RESPONSE_COMPLETE", "HTTP_SEND_START",
    "HTTP_SEND_END",
]  # fmt: skip


@wherry.model(max_batch_size=1)
def shout(text: list[str]) -> list[str]:
    return [f"{one}!" if one != "?" else str(1 // 0) for one in text]


def traced(common: Common, *texts: str) -> None:
    """Ask a model, as a frontend does it."""
    with wherry.Runtime(shout) as runtime:
        asked(common, runtime, *texts)
    common.traces.close()


def asked(common: Common, runtime: wherry.Runtime, *texts: str, model: str = "shout") -> None:
    loaded = runtime.model(model)
    for text in texts:
        settled = Settled()
        request = loaded.request({"text": [text]}, 1, settled, id=text)
        if common.traces.settings.on:
            common.traces.follow(loaded, request, runtime.clock)
        loaded.submit([request])
        settled.wait()


class Settled(Reply[InferResponse]):
    def __init__(self) -> None:
        self._event = threading.Event()
        super().__init__(lambda _: self._event.set())

    def wait(self) -> None:
        assert self._event.wait(TIMEOUT)


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
    assert [stamp["name"] for stamp in times["timestamps"]] == OF_HTTP
    moments = [stamp["ns"] for stamp in times["timestamps"]]
    assert moments[3:8] == sorted(moments[3:8])
    assert moments[:3] == 3 * [moments[0]]
    assert moments[0] <= moments[-4] == moments[-2] <= moments[-1]
    assert failed["timestamps"][-1]["name"] == "HTTP_SEND_END"


def ids(path: Path) -> list[str]:
    return [entry["request_id"] for entry in read(path) if "request_id" in entry]


def test_a_number_of_traces_that_is_not_reached_is_in_the_file_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    config = [f"triton,file={path}", "level=TIMESTAMPS", "rate=1", "count=3"]
    traced(Common(trace_settings=TraceSettings(config)), *"ab")
    assert ids(path) == ["a", "b"]
    assert list(tmp_path.iterdir()) == [path]


def test_each_setting_counts_and_keeps_its_own_traces(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    config = [f"triton,file={path}", "level=TIMESTAMPS", "rate=1"]
    common = Common(trace_settings=TraceSettings(config))
    with wherry.Runtime(shout) as runtime:
        ask = partial(asked, common, runtime)
        ask("a")
        common.trace_settings.update({"log_frequency": "2"}, "shout")
        ask("b", "c", "d")
        common.trace_settings.update({"trace_count": "1"}, "shout")  # what was kept is written
        ask("e", "f")
        common.trace_settings.update({"trace_rate": "2"})  # a model's are counted anew, too
        common.trace_settings.update({"trace_count": None, "log_frequency": None}, "shout")
        ask("g", "h")
    common.traces.close()
    assert ids(path) == ["a", "h"]
    kept = [ids(tmp_path / f"trace.{number}") for number in range(3)]
    assert kept == [["b", "c"], ["d"], ["e"]]
    assert len(list(tmp_path.iterdir())) == 4


def test_the_calls_of_a_pipeline_are_traces_below_its_own(tmp_path: Path) -> None:
    @wherry.pipeline
    async def twice(text: str) -> str:
        again = await shout.ainfer(text)
        return str(await shout.ainfer(again))

    path = tmp_path / "trace"
    config = [f"triton,file={path}", "level=TIMESTAMPS", "rate=1"]
    common = Common(trace_settings=TraceSettings(config))
    with wherry.Runtime(shout, twice) as runtime:
        asked(common, runtime, "a", model="twice")
    common.traces.close()
    heads = [entry for entry in read(path) if "model_name" in entry]
    assert [(one["model_name"], one.get("parent_id")) for one in heads] == [
        ("twice", None),
        ("shout", 1),
        ("shout", 1),
    ]
    first = next(entry for entry in read(path) if entry["id"] == 2 and "timestamps" in entry)
    assert [stamp["name"] for stamp in first["timestamps"]] == CORE
    moments = [stamp["ns"] for stamp in first["timestamps"]]
    assert moments[1:6] == sorted(moments[1:6])
    assert moments[0] <= moments[-1]
    whole = next(entry for entry in read(path) if entry["id"] == 1 and "timestamps" in entry)
    assert not {stamp["name"] for stamp in whole["timestamps"]} & set(CORE[2:-1])


def test_one_in_so_many_is_traced_and_no_more_than_so_many(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    config = [f"triton,file={path}", "level=TIMESTAMPS", "rate=2", "count=2"]
    common = Common(trace_settings=TraceSettings(config))
    traced(common, *"abcdefgh")

    assert ids(tmp_path / "trace.json.0") == ["b", "d"]
    assert not path.exists()
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
