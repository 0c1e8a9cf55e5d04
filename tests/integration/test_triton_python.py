"""Does a model.py written for Triton's Python backend run unchanged, and does nobody hang when it
goes wrong?"""

import json
import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

import wherry
from tests.fakes import until
from tests.python_models import REPOSITORY, python_model, running, written_model
from wherry.core.observability.custom_metrics import merged
from wherry.core.observability.families import custom_metric
from wherry.core.values.errors import (
    ConfigError,
    DeadlineExceeded,
    LoadFailed,
    ModelFailed,
    PoisonRequest,
    WorkerDied,
)
from wherry.core.values.reply import Reply, StreamReply
from wherry.core.values.request import InferRequest, InferResponse, SequenceStep
from wherry.testing import ServerProcess, running_server
from wherry.triton.backends.load import backend_for
from wherry.triton.python.instance import PythonInstance
from wherry.triton.repository.json_form import from_json

if sys.platform == "win32":
    pytest.skip("worker processes need a Unix system", allow_module_level=True)

pytestmark = pytest.mark.slow

X = np.array([1.0, 2.0], np.float32)
#: A model.py of one element in and one out, of the same type, before its methods.
X_TO_Y = """
import asyncio
import os
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        for add, name in ((config.add_input, "X"), (config.add_output, "Y")):
            add({"name": name, "data_type": "TYPE_%s", "dims": [1]})
        return config
"""


@pytest.fixture(scope="module")
def rt() -> Iterator[wherry.Runtime]:
    """Well-behaved models, for all tests that leave them as they are."""
    names = ["add_sub", "upper", "asked", "repeat", "squares", "caller", "awaiter", "kept"]
    with running(*names) as runtime:
        yield runtime


def instances(rt: wherry.Runtime, model: str) -> list[PythonInstance]:
    runner: Any = rt.model(model).runner
    return list(runner.instances)


def sent(
    rt: wherry.Runtime, model: str, columns: dict[str, Any], rows: int = 1, **more: Any
) -> InferRequest:
    """A request as a frontend sends it."""
    loaded = rt.model(model)
    request = loaded.request(columns, rows, Reply(lambda _: None), **more)
    loaded.submit([request])
    return request


def response(request: InferRequest) -> InferResponse:
    until(lambda: hasattr(request.reply, "outcome"))
    answer: InferResponse = request.reply.result()
    return answer


def call(rt: wherry.Runtime, do: str, **how: Any) -> list[str]:
    """What the caller model tells after it did this."""
    told = rt.infer("caller", HOW=[json.dumps({"do": do, **how}).encode()], X=X)["TOLD"]
    return [text.decode() for text in told]


# Requests and responses


def test_a_model_gets_requests_and_gives_responses(rt: wherry.Runtime) -> None:
    answer = rt.infer("add_sub", A=X, B=2 * X)

    np.testing.assert_array_equal(answer["SUM"], 3 * X)
    np.testing.assert_array_equal(answer["DIFFERENCE"], -X)


def test_large_tensors_go_through_shared_memory_and_come_back_right(rt: wherry.Runtime) -> None:
    for size in (2000, 3_000_000, 20_000_000):  # the last does not fit into the slab
        a = np.arange(size, dtype=np.float32)
        answer = rt.infer("add_sub", A=a, B=a)
        np.testing.assert_array_equal(answer["SUM"], 2 * a)
        assert not answer["DIFFERENCE"].any()


def test_requests_of_one_batch_reach_execute_as_a_list(rt: wherry.Runtime) -> None:
    with running(python_model("asked", dynamic_batching={})) as batching:
        loaded = batching.model("asked")
        column = np.zeros((1, 1), np.int32)
        requests = [loaded.request({"X": column}, 1, Reply(lambda _: None)) for _ in range(4)]
        loaded.submit(requests)
        told = [json.loads(response(one).outputs["TOLD"][0][0]) for one in requests]

    assert [one["requests"] for one in told] == [4] * 4


def test_without_dynamic_batching_each_request_is_executed_alone(rt: wherry.Runtime) -> None:
    loaded = rt.model("asked")
    column = np.zeros((1, 1), np.int32)
    requests = [loaded.request({"X": column}, 1, Reply(lambda _: None)) for _ in range(4)]
    loaded.submit(requests)
    told = [json.loads(response(one).outputs["TOLD"][0][0]) for one in requests]

    assert [one["requests"] for one in told] == [1] * 4


def test_batches_go_ahead_to_models_that_answer_with_what_they_return(rt: wherry.Runtime) -> None:
    """A call may wait for a request that would be behind it, and a decoupled model's batch says
    nothing of how long its requests take."""
    ahead = {name: instances(rt, name)[0].takes_ahead for name in ("add_sub", "caller", "repeat")}

    assert ahead == {"add_sub": True, "caller": False, "repeat": False}


def test_strings_are_arrays_of_bytes_objects(rt: wherry.Runtime) -> None:
    answer = rt.infer("upper", TEXT=[b"a", "\u00e4".encode(), b""])

    assert answer["UPPER"] == [b"A", "\u00c4".encode(), b""]
    np.testing.assert_array_equal(answer["LENGTH"], [1, 2, 0])


def test_a_model_can_ask_everything_of_a_request(rt: wherry.Runtime) -> None:
    request = sent(
        rt,
        "asked",
        {"X": np.zeros((1, 1), np.int32), "EXTRA": np.zeros((1, 1), np.int32)},
        id="r1",
        timeout=50.0,
        parameters={"temperature": 0.5, "note": "\u00e9"},
        sequence=SequenceStep("chat-7", start=True),
        requested_outputs=["TOLD"],
    )
    answer = response(request)
    told = json.loads(answer.outputs["TOLD"][0][0])

    assert told["request_id"] == "r1"
    assert told["correlation_id"] == "chat-7"
    assert told["flags"] == 1
    assert told["timeout"] == 50_000_000
    assert told["parameters"] == {"temperature": 0.5, "note": "\u00e9"}
    assert told["inputs"] == ["X", "EXTRA"]
    assert told["wanted"] == ["TOLD"]
    assert told["texts"]
    assert told["args"]["model_name"] == "asked"
    assert told["args"]["model_instance_kind"] == "CPU"
    assert told["max_batch_size"] == 4
    assert set(answer.outputs) == {"TOLD"}  # and not what nobody asked for
    told = json.loads(rt.infer("asked", X=[0])["TOLD"][0])
    assert told["wanted"] == ["TOLD", "UNASKED"]  # whoever names none asks for all
    assert answer.parameters == {"kind": "told", "n": 3, "ok": True}


def test_a_model_may_keep_its_inputs_and_write_to_them(rt: wherry.Runtime) -> None:
    for i in range(4):  # in the slab: as large as an input must be to lie there
        x = np.full(5000, i)
        assert rt.infer("kept", X=x)["KEPT"].tolist() == list(range(1, i + 2))
        assert (x == i).all()


# Decoupled models


def test_a_decoupled_model_sends_any_number_of_responses(rt: wherry.Runtime) -> None:
    for times in (0, 1, 5):
        counts = [answer["COUNT"][0] for answer in rt.stream("repeat", TIMES=[times])]
        assert counts == list(range(times))


def test_requests_of_a_decoupled_model_run_side_by_side(rt: wherry.Runtime) -> None:
    """Its execute() has returned when the second comes; the first goes on until then."""
    first = rt.stream("repeat", TIMES=[-1])
    assert next(first)["COUNT"][0] == 0

    assert len(list(rt.stream("repeat", TIMES=[3]))) == 3
    assert next(first)["COUNT"][0] == 1
    first.close()  # type: ignore[attr-defined]


def test_a_client_that_leaves_is_seen_by_is_cancelled(
    rt: wherry.Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    stream = rt.stream("repeat", TIMES=[-1])
    next(stream)
    stream.close()  # type: ignore[attr-defined]

    until(lambda: "cancelled after" in caplog.text)
    until(lambda: not instances(rt, "repeat")[0].open_requests)


def test_a_reader_that_does_not_read_is_given_up(rt: wherry.Runtime) -> None:
    loaded = rt.model("repeat")
    reply: StreamReply[InferResponse] = StreamReply(lambda *_: None, lambda _: None)
    request = loaded.request({"TIMES": np.array([[-1]], np.int32)}, 1, reply)
    reply.limit = 5
    loaded.submit([request])
    until(lambda: hasattr(reply, "outcome"))

    assert "left 5 responses unread" in str(reply.outcome)


def test_async_execute_of_a_decoupled_model_has_several_requests_at_a_time(
    rt: wherry.Runtime,
) -> None:
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(lambda: list(rt.stream("squares", N=[0])))
        until(lambda: instances(rt, "squares")[0].open_requests)
        answers = list(rt.stream("squares", N=[3]))
        assert [answer["SQUARE"][0] for answer in answers] == [0, 1, 4, 9]
        assert len(waits.result()) == 1


def test_what_async_execute_raises_is_the_end_of_its_requests(rt: wherry.Runtime) -> None:
    with pytest.raises(ModelFailed, match="no square roots here"):
        list(rt.stream("squares", N=[-1]))
    assert len(list(rt.stream("squares", N=[1]))) == 2


def test_a_stream_that_outlives_its_batch_ends_before_its_model_sleeps() -> None:
    with wherry.Runtime(device_memory={"cpu": 100}) as rt, ThreadPoolExecutor(1) as pool:
        for name in ("add_sub", "repeat"):
            rt.load(python_model(name), memory=60)
        stream = rt.stream("repeat", TIMES=[-1])
        next(stream)
        answer = pool.submit(rt.infer, "add_sub", A=X, B=X)
        until(lambda: rt.model("repeat").runner.residence()["state"] == "stopping")
        assert [next(stream)["COUNT"][0] for _ in range(50)] == list(range(1, 51))
        assert not answer.done()
        stream.close()  # type: ignore[attr-defined]
        np.testing.assert_array_equal(answer.result()["SUM"], X + X)


# Models that call models


def test_a_model_calls_another_one(rt: wherry.Runtime) -> None:
    assert call(rt, "exec") == ["2.0"]
    assert call(rt, "exec", outputs=["DIFFERENCE", "SUM"]) == ["2.0", "0.0"]
    assert call(rt, "gather", count=5) == ["2.0", "4.0", "6.0", "8.0", "10.0"]


def test_calls_of_many_requests_are_batched_by_the_called_model(rt: wherry.Runtime) -> None:
    before = rt.model("add_sub").statistics.execution_count
    (called,) = instances(rt, "add_sub")
    assert called.pid is not None
    pid = called.pid
    runner = rt.model("add_sub").runner
    with ThreadPoolExecutor(1) as pool:
        os.kill(pid, signal.SIGSTOP)  # it has its first batches, all others wait
        try:
            gathered = pool.submit(call, rt, "gather", count=64)
            until(lambda: runner.queued_requests + len(called.open_requests) >= 64)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert len(gathered.result()) == 64

    assert rt.model("add_sub").statistics.execution_count - before < 64


def test_async_execute_awaits_other_models(rt: wherry.Runtime) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda i: rt.infer("awaiter", X=[float(i)])["Y"][0], range(16)))

    assert answers == [2.0 * i for i in range(16)]


def test_a_call_is_begun_before_anything_awaits_it(tmp_path: Path) -> None:
    """async_exec() returns a future, as in Triton: of two calls that are awaited one after the
    other the second is answered meanwhile, and asyncio.wait() takes them."""
    code = """
import asyncio
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [2]})
        config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]})
        return config

    def call(self, x):
        tensors = [pb_utils.Tensor(name, x[np.newaxis]) for name in "AB"]
        return pb_utils.InferenceRequest(
            model_name="add_sub", requested_output_names=["SUM"], inputs=tensors
        ).async_exec()

    async def execute(self, requests):
        x = requests[0].inputs()[0].as_numpy()
        first, second = self.call(x), self.call(10 * x)
        second.add_done_callback(lambda _: first_may_be_read.set())
        first_may_be_read = asyncio.Event()
        await first_may_be_read.wait()
        done, _ = await asyncio.wait([first, second])
        sums = [one.result().output_tensors()[0].as_numpy().ravel() for one in (first, second)]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.concatenate(sums))])]
"""
    with running("add_sub", written_model(tmp_path, code)) as rt:
        assert rt.infer("written", X=X)["Y"].tolist() == [2, 4, 20, 40]


def test_waiting_for_a_stream_to_begin_leaves_the_loop_to_others(tmp_path: Path) -> None:
    """`await async_exec(decoupled=True)` returns with the first response, so that a plain `for`
    over a stream of one response blocks nothing."""
    code = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [1]})
        config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [1]})
        config.set_model_transaction_policy({"decoupled": True})
        return config

    def initialize(self, args):
        self.leaf = args["model_name"] == "leaf"
        self.held = []

    def answer(self, sender, x):
        response = pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)])
        sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    async def execute(self, requests):
        for request in requests:
            x = request.inputs()[0].as_numpy()
            sender = request.get_response_sender()
            if self.leaf:  # answers the first when the second has come
                self.held.append((sender, x))
                if len(self.held) == 2:
                    for one in self.held:
                        self.answer(*one)
                continue
            call = pb_utils.InferenceRequest(
                model_name="leaf", requested_output_names=["Y"], inputs=[pb_utils.Tensor("X", x)]
            )
            for response in await call.async_exec(decoupled=True):
                for tensor in response.output_tensors():
                    self.answer(sender, tensor.as_numpy())
"""
    models = [written_model(tmp_path, code, name=name) for name in ("leaf", "written")]
    with running(*models) as rt, ThreadPoolExecutor(2) as pool:
        answers = pool.map(
            lambda x: list(rt.stream("written", X=np.array([x], np.float32))), (1.0, 2.0)
        )
        assert [[one["Y"][0] for one in stream] for stream in answers] == [[1.0], [2.0]]


def test_errors_of_a_call_are_errors_in_its_response(rt: wherry.Runtime) -> None:
    assert "error 2" in call(rt, "exec", model="nowhere")[0]
    assert "error 3: unexpected inference output 'X'" in call(rt, "exec", outputs=["X"])[0]
    assert "error 3: unexpected inference input 'A'" in call(rt, "exec", model="upper")[0]
    assert "error 5" in call(rt, "stream", times=3, decoupled=False)[0]
    assert "error 2" in call(rt, "exec", model_version=7)[0]


def test_a_call_of_a_decoupled_model_is_an_iterator(rt: wherry.Runtime) -> None:
    assert call(rt, "stream", times=4) == ["0", "1", "2", "3"]
    assert call(rt, "stream", times=0) == []


def test_an_end_that_comes_alone_is_a_response_and_the_iterator_begins_again(
    rt: wherry.Runtime,
) -> None:
    assert call(rt, "count", times=3) == ["[1, 1, 1, 0]", "[1, 1, 1, 0]", "[1, 1, 1, 0]"]
    assert call(rt, "count", times=0) == ["[0]", "[0]", "[0]"]


def test_a_call_that_is_cancelled_ends_as_the_called_model_likes(rt: wherry.Runtime) -> None:
    assert call(rt, "cancel") == ["0", "1", "no outputs", "0"]
    until(lambda: not instances(rt, "repeat")[0].open_requests)


def test_a_call_of_wherrys_own_model_that_is_cancelled_ends_with_an_error() -> None:
    told = threading.Event()

    @wherry.model
    def waits(text: str) -> str:
        told.wait()
        return text

    with running("caller", waits) as rt:
        answer = call(rt, "wherry_model", model="waits", cancel=True)
        told.set()
        assert answer == ["error 7: the request was cancelled"]


def test_a_call_is_checked_as_triton_checks_it(rt: wherry.Runtime) -> None:
    (told,) = call(rt, "missing")
    assert "expected 2 inputs but got 1 inputs for model 'add_sub'" in told
    (told,) = call(rt, "double")
    assert "data-type is 'FP64', but model 'add_sub' expects 'FP32'" in told
    (told,) = call(rt, "exec", model="nowhere")
    assert "Failed for execute the inference request. Model 'nowhere' is not ready." in told
    assert "Error when running inference: Request for unknown model: 'nowhere'" in told
    (told,) = call(rt, "exec", timeout=1)  # us, which the way takes
    assert told == "error 4: Request timeout expired"
    assert call(rt, "exec", timeout=11_000_000_000) == ["2.0"]


def test_an_iterator_that_is_dropped_cancels_the_call(rt: wherry.Runtime) -> None:
    assert call(rt, "stream", times=-1, stop_after=2) == ["0", "1"]
    until(lambda: not instances(rt, "repeat")[0].open_requests)


def test_a_model_with_one_instance_that_calls_itself_is_told_so(rt: wherry.Runtime) -> None:
    (told,) = call(rt, "chain", models=["caller"])

    assert "error 4" in told
    assert "model 'caller' calls model 'caller', which would never answer" in told
    assert call(rt, "exec") == ["2.0"]


def test_chains_of_calls_work_and_circles_are_found(rt: wherry.Runtime) -> None:
    others = [python_model(name, "caller") for name in ("first", "second")]
    with running("add_sub", "caller", *others) as rt:
        assert call(rt, "chain", models=["first", "second"]) == ["first: second: 2.0"]
        (told,) = call(rt, "chain", models=["first", "second", "first"])
        assert "model 'second' calls model 'first', which would never answer" in told


def test_a_circle_through_an_ensemble_is_found_too(tmp_path: Path) -> None:
    ensemble = {
        "name": "around",
        "platform": "ensemble",
        "input": [
            {"name": "HOW", "data_type": "TYPE_STRING", "dims": [1]},
            {"name": "X", "data_type": "TYPE_FP32", "dims": [-1]},
        ],
        "output": [{"name": "TOLD", "data_type": "TYPE_STRING", "dims": [-1]}],
        "ensemble_scheduling": {
            "step": [
                {
                    "model_name": "caller",
                    "model_version": -1,
                    "input_map": {"HOW": "HOW", "X": "X"},
                    "output_map": {"TOLD": "TOLD"},
                }
            ]
        },
    }
    (tmp_path / "1").mkdir()
    around = backend_for(str(tmp_path), "1", from_json(ensemble))
    with running("caller", around, "add_sub") as rt:
        assert "would never answer" in call(rt, "chain", models=["around"])[0]


def test_with_two_instances_a_model_may_call_itself(rt: wherry.Runtime) -> None:
    with running("add_sub", python_model("caller", instance_group=[{"count": 2}])) as rt:
        assert call(rt, "chain", models=["caller"]) == ["caller: 2.0"]
        assert "would never answer" in call(rt, "chain", models=["caller", "caller"])[0]


@wherry.model(max_batch_size=8)
def shout(text: list[str]) -> list[str]:
    return [line.upper() for line in text]


def test_a_model_calls_wherrys_own_models() -> None:
    with running("caller", shout) as rt:
        assert call(rt, "wherry_model", model="shout") == ["[b'SOME', b'WORDS']"]


def test_a_model_asks_whether_others_are_ready(rt: wherry.Runtime) -> None:
    assert call(rt, "ready", model="add_sub") == ["True"]
    assert call(rt, "ready", model="add_sub", version="1") == ["True"]
    assert call(rt, "ready", model="add_sub", version="2") == ["False"]
    assert call(rt, "ready", model="nowhere") == ["False"]


def test_loading_needs_a_repository(rt: wherry.Runtime) -> None:
    assert "refused: this server has no model repository" in call(rt, "load", model="x")[0]


# What goes wrong


@pytest.fixture(scope="module")
def faulty() -> Iterator[wherry.Runtime]:
    with running("faulty") as runtime:
        yield runtime


def fault(rt: wherry.Runtime, do: str) -> Any:
    return rt.infer("faulty", DO=[do.encode()])["OUT"]


def test_an_exception_fails_all_requests_of_its_batch(faulty: wherry.Runtime) -> None:
    """As in Triton: a rerun could do twice what execute() has done before it raised."""
    loaded = faulty.model("faulty")
    asked = [b"raise", b"fine", b"fine"]
    requests = [loaded.request({"DO": [[do]]}, 1, Reply(lambda _: None)) for do in asked]
    loaded.submit(requests)
    until(lambda: all(hasattr(one.reply, "outcome") for one in requests))

    for one in requests:
        assert isinstance(one.reply.outcome, ModelFailed)
        assert "ValueError: as I was told" in str(one.reply.outcome)
    assert fault(faulty, "fine") == [b"fine"]


def test_numpys_error_for_strings_says_the_remedy(tmp_path: Path) -> None:
    code = """
    def execute(self, requests):
        return [np.char.decode(request.inputs()[0].as_numpy()) for request in requests]
"""
    with (
        running(written_model(tmp_path, X_TO_Y % "STRING" + code)) as rt,
        pytest.raises(ModelFailed, match=r"write .astype\(bytes\) before"),
    ):
        rt.infer("written", X=[b"text"])


def test_a_record_of_a_library_that_writes_its_own_lines_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As huggingface_hub does: it has a handler, and hands its records on as well."""
    code = """
import logging
logging.getLogger("library").addHandler(logging.StreamHandler())

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [1]})
        config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [1]})
        return config

    def initialize(self, args):
        logging.getLogger("library.part").warning("once")
        logging.getLogger("other").warning("also once")

    def execute(self, requests):
        raise NotImplementedError
"""
    caplog.set_level(logging.INFO)
    with running(written_model(tmp_path, code)):
        pass

    told = [record.getMessage() for record in caplog.records if "once" in record.getMessage()]
    assert sorted(told) == ["also once", "once"]


def test_an_error_response_is_of_its_request_only(faulty: wherry.Runtime) -> None:
    loaded = faulty.model("faulty")
    asked = [b"fine", b"error 3", b"also fine"]
    requests = [loaded.request({"DO": [[do]]}, 1, Reply(lambda _: None)) for do in asked]
    loaded.submit(requests)

    assert response(requests[0]).outputs["OUT"] == [[b"fine"]]
    with pytest.raises(wherry.InvalidRequest, match="told 3"):
        response(requests[1])
    assert response(requests[2]).outputs["OUT"] == [[b"also fine"]]


@pytest.mark.parametrize(
    ("code", "status", "grpc_code"),
    [
        (0, 400, "UNKNOWN"),
        (1, 500, "INTERNAL"),
        (2, 404, "NOT_FOUND"),
        (3, 400, "INVALID_ARGUMENT"),
        (4, 503, "UNAVAILABLE"),
        (5, 501, "UNIMPLEMENTED"),
        (6, 400, "ALREADY_EXISTS"),
        (7, 499, "CANCELLED"),
    ],
)
def test_each_error_code_has_its_status(
    faulty: wherry.Runtime, code: int, status: int, grpc_code: str
) -> None:
    with pytest.raises(wherry.WherryError, match=f"told {code}") as caught:
        fault(faulty, f"error {code}")

    assert (caught.value.http_status, caught.value.grpc_code) == (status, grpc_code)


@pytest.mark.parametrize(
    ("do", "text"),
    [
        ("too few", "0 for 1 requests"),
        ("no list", "'faulty_0', message: Expected a list in the execute return"),
        ("wrong type", "Expected an 'InferenceResponse' object .* found type <class 'str'>"),
        ("none", "dropped the request without a final response"),
        ("dropped", "dropped the request without a final response"),
        ("wrong datatype", "gave a wrong output 'OUT': it is FP64, declared is BYTES"),
        ("surrogate", "surrogates not allowed"),
        ("sys.exit", "SystemExit"),
        ("BaseException", "BaseException: not an Exception"),
        ("KeyboardInterrupt", "KeyboardInterrupt: not an Exception"),
        ("GeneratorExit", "GeneratorExit: not an Exception"),
    ],
)
def test_a_wrong_answer_is_an_error_that_says_what_is_wrong(
    faulty: wherry.Runtime, do: str, text: str
) -> None:
    pid = instances(faulty, "faulty")[0].pid
    with pytest.raises(ModelFailed, match=text):
        fault(faulty, do)

    assert fault(faulty, "fine") == [b"fine"]
    assert instances(faulty, "faulty")[0].pid == pid


def test_an_output_that_nobody_declared_is_dropped_and_told_of_once(
    faulty: wherry.Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    for _ in range(2):
        columns: dict[str, Any] = {"DO": [[b"unknown output"]]}
        assert response(sent(faulty, "faulty", columns)).outputs == {}
    told = [one for one in caplog.records if "output dropped" in one.message]
    assert [one.output for one in told] == ["NOWHERE"]  # type: ignore[attr-defined]


def test_an_output_has_the_shape_that_the_model_gave_it(faulty: wherry.Runtime) -> None:
    answer = response(sent(faulty, "faulty", {"DO": [[b"wrong rows"]]}))
    column = answer.outputs["OUT"]

    assert column == [[b"1"], [b"2"]]
    answer = response(sent(faulty, "faulty", {"DO": [[b"flat"]]}))
    assert getattr(answer.outputs["OUT"], "shape", None) == (3,)


def test_a_model_may_leave_an_output_out(faulty: wherry.Runtime) -> None:
    assert response(sent(faulty, "faulty", {"DO": [[b"nothing"]]})).outputs == {}


def test_a_model_that_is_not_decoupled_may_use_a_response_sender(
    faulty: wherry.Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    assert fault(faulty, "sender") == [b"sent"]
    assert fault(faulty, "twice") == [b"first"]
    until(
        lambda: "refused: Unable to send response. Response sender has been closed" in caplog.text
    )


@pytest.mark.parametrize("do", ["exit", "crash", "garbage"])
def test_a_process_that_dies_is_replaced_and_its_request_told(do: str) -> None:
    with running("faulty") as rt:
        for _ in range(5):
            with pytest.raises(PoisonRequest):
                fault(rt, do)
        assert fault(rt, "fine") == [b"fine"]
        assert rt.model("faulty").statistics.worker_restarts == 2


def test_the_log_says_where_execute_has_raised(caplog: pytest.LogCaptureFixture) -> None:
    with running("faulty") as rt:
        for _ in range(3):
            with pytest.raises(ModelFailed):
                fault(rt, "raise")
    failed, more = [r.__dict__ for r in caplog.records if "model failed" in r.getMessage()]
    assert "in answer" in failed["traceback"]
    assert failed["instance"] == "faulty_0"
    assert more["like_it"] == "2"


@pytest.mark.parametrize("declared", ["TYPE_STRING", "TYPE_FP32", "TYPE_INT8", "TYPE_BOOL"])
@pytest.mark.parametrize("batch_size", [0, 4])
def test_an_empty_array_has_the_datatype_that_was_declared(
    tmp_path: Path, declared: str, batch_size: int
) -> None:
    code = f"""
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size({batch_size})
        config.add_input({{"name": "KIND", "data_type": "TYPE_STRING", "dims": [1]}})
        config.add_output({{"name": "OUT", "data_type": "{declared}", "dims": [-1]}})
        return config

    def execute(self, requests):
        shape = (1, 0) if {batch_size} else (0,)
        kinds = [r.inputs()[0].as_numpy().ravel()[0].decode() for r in requests]
        outputs = [pb_utils.Tensor("OUT", np.zeros(shape, kind)) for kind in kinds]
        return [pb_utils.InferenceResponse([output]) for output in outputs]
"""
    with running(written_model(tmp_path, code)) as rt:
        for kind in ("float64", "int32", "object", "bool"):
            assert len(rt.infer("written", KIND=[kind.encode()])["OUT"]) == 0


PLACES = """
import os
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(8)
        config.add_input({"name": "DO", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_output({"name": "OUT", "data_type": "TYPE_STRING", "dims": [1]})
        return config

    def execute(self, requests):
        responses = []
        for request in requests:
            do = pb_utils.get_input_tensor_by_name(request, "DO")
            path = do.as_numpy()[0, 0].decode()
            if path.startswith("/"):
                open(path).read()
            responses.append(
                pb_utils.InferenceResponse([pb_utils.Tensor("OUT", do.as_numpy())])
            )
        return responses
"""


@pytest.mark.parametrize("end", ["answered", "left", "killed"])
def test_a_batch_that_runs_is_answered_or_left_or_tried_once_more(tmp_path: Path, end: str) -> None:
    fifo = str(tmp_path / "fifo")
    os.mkfifo(fifo)
    with running(written_model(tmp_path, PLACES)) as rt:
        (instance,) = instances(rt, "written")
        request = sent(rt, "written", {"DO": [[fifo.encode()]]})
        file = os.open(fifo, os.O_WRONLY)  # the model is there
        if end == "left":
            runner: Any = rt.model("written").runner
            assert runner.cancel(request)
        if end == "killed":
            assert instance.pid is not None
            os.kill(instance.pid, signal.SIGKILL)
            until(lambda: instance not in instances(rt, "written"))
            again = os.open(fifo, os.O_WRONLY)  # tried once more, in another process
            os.close(again)
        os.close(file)  # not before that: the other one would not wait

        if end == "left":
            assert isinstance(request.reply.outcome, wherry.Cancelled)
        else:
            assert response(request).outputs["OUT"] == [[fifo.encode()]]
        for do in (b"a", b"b"):
            assert rt.infer("written", DO=[do])["OUT"] == [do]


def test_a_model_that_must_not_run_twice_is_not_tried_once_more(tmp_path: Path) -> None:
    fifo = str(tmp_path / "fifo")
    os.mkfifo(fifo)
    with wherry.Runtime() as rt:
        rt.load(written_model(tmp_path, PLACES), run_again=False)
        (instance,) = instances(rt, "written")
        request = sent(rt, "written", {"DO": [[fifo.encode()]]})
        file = os.open(fifo, os.O_WRONLY)  # the model is there
        assert instance.pid is not None
        os.kill(instance.pid, signal.SIGKILL)
        with pytest.raises(wherry.MayHaveRun, match=r"SIGKILL.* may have run"):
            response(request)
        os.close(file)
        assert rt.infer("written", DO=[b"a"])["OUT"] == [b"a"]


def test_what_cannot_be_sent_fails_alone(tmp_path: Path) -> None:
    with running(written_model(tmp_path, PLACES)) as rt:
        loaded = rt.model("written")
        asked: list[Any] = [b"good", "no bytes", b"good, too"]
        requests = [loaded.request({"DO": [[do]]}, 1, Reply(lambda _: None)) for do in asked]
        loaded.submit(requests)

        assert response(requests[0]).outputs["OUT"] == [[b"good"]]
        with pytest.raises(wherry.InvalidRequest):
            response(requests[1])
        assert response(requests[2]).outputs["OUT"] == [[b"good, too"]]
        (instance,) = instances(rt, "written")
        until(lambda: not instance.batches)
        assert not instance.open_requests


@pytest.mark.parametrize("run_again", [True, False])
def test_requests_that_outlive_their_batch_are_told_of_a_death(run_again: bool) -> None:
    with wherry.Runtime() as rt:
        rt.load(python_model("repeat"), run_again=run_again)
        stream = rt.stream("repeat", TIMES=[-1])
        next(stream)
        pid = instances(rt, "repeat")[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerDied if run_again else wherry.MayHaveRun, match="SIGKILL"):
            list(stream)
        assert len(list(rt.stream("repeat", TIMES=[2]))) == 2


def test_calls_of_a_process_that_dies_are_cancelled(tmp_path: Path) -> None:
    """The caller dies while it reads a stream that never ends."""
    code = """
    def execute(self, requests):
        inputs = [pb_utils.Tensor("TIMES", np.array([-1], np.int32))]
        request = pb_utils.InferenceRequest(
            model_name="repeat", requested_output_names=[], inputs=inputs
        )
        for response in request.exec(decoupled=True):
            time.sleep(0.1)  # the next one comes, and is not read
            os._exit(1)
"""
    with running("repeat", written_model(tmp_path, X_TO_Y % "FP32" + code)) as rt:
        with pytest.raises(WorkerDied):
            rt.infer("written", X=[1.0])
        until(lambda: not instances(rt, "repeat")[0].open_requests)


def test_draining_waits_for_requests_that_outlive_their_batch() -> None:
    with running("repeat") as rt:
        answers: SimpleQueue[Any] = SimpleQueue()

        def read() -> None:
            for one in rt.stream("repeat", TIMES=[500]):
                answers.put(one)

        thread = threading.Thread(target=read)
        thread.start()
        answers.get()
        assert rt.drain(20.0)
        thread.join()
        assert answers.qsize() == 499


def test_what_outlives_the_time_to_drain_is_told_and_its_model_too() -> None:
    """Else finalize(), which waits for the thread that answers, would never end."""
    with running("repeat") as rt, ThreadPoolExecutor(1) as readers:
        stream = rt.stream("repeat", TIMES=[-1])
        next(stream)
        reads = readers.submit(lambda: sum(1 for _ in stream))
        rt.unload("repeat", drain_timeout=0.1)
        with pytest.raises(wherry.ModelNotReady, match="unloading"):
            reads.result()


# Life


def test_a_device_that_is_lost_ends_the_process_and_another_error_does_not(tmp_path: Path) -> None:
    code = """
    def execute(self, requests):
        said = int(requests[0].inputs()[0].as_numpy()[0])
        if said == 1:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if said == 2:
            raise ValueError("CUDA error: a client has said so")
        pid = pb_utils.Tensor("Y", np.array([os.getpid()], np.int32))
        return [pb_utils.InferenceResponse([pid]) for _ in requests]
"""
    with running(written_model(tmp_path, X_TO_Y % "INT32" + code)) as rt:

        def pid() -> int:
            return int(rt.infer("written", X=np.array([0], np.int32))["Y"][0])

        first = pid()
        with pytest.raises(wherry.ModelFailed, match="a client has said so"):
            rt.infer("written", X=np.array([2], np.int32))
        assert pid() == first
        with pytest.raises(wherry.ModelFailed, match="illegal memory access"):
            rt.infer("written", X=np.array([1], np.int32))
        assert pid() != first


def test_what_initialize_raises_is_why_it_was_not_loaded(tmp_path: Path) -> None:
    code = """
class TritonPythonModel:
    def initialize(self, args):
        raise KeyError("weights")
    def execute(self, requests):
        pass
"""
    with (
        pytest.raises(LoadFailed, match=r"KeyError: 'weights'"),
        running(written_model(tmp_path, code)),
    ):
        pass


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("import nothing_of_this_name", "ModuleNotFoundError.*EXECUTION_ENV_PATH"),
        ("x = 1", "no class TritonPythonModel$"),
        (
            "import sys\nsys.modules['torch'] = sys\nclass Net: pass",
            "no class TritonPythonModel; a torch.nn.Module alone cannot be served",
        ),
        ("def f(:", "SyntaxError"),
        ("import os\nos._exit(7)", "exit status 7"),
        (
            "class TritonPythonModel:\n  @staticmethod\n  def auto_complete_config(c): pass",
            "must return a valid pb.ModelConfig object: the one that it gets, not a NoneType",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_an_error_that_says_why(
    tmp_path: Path, code: str, text: str
) -> None:
    with pytest.raises((LoadFailed, ConfigError), match=text):
        written_model(tmp_path, code)


def test_files_beside_the_model_can_be_imported(tmp_path: Path) -> None:
    code = """
import beside
import numpy as np
import helper
import triton_python_backend_utils as pb_utils
from .helper import WHO

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [1]})
        config.add_output({"name": "Y", "data_type": "TYPE_STRING", "dims": [1]})
        return config

    def execute(self, requests):
        told = np.array([helper.WHO + WHO + beside.WHO], dtype=np.object_)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", told)]) for _ in requests]
"""
    (tmp_path / "written" / "1").mkdir(parents=True)
    (tmp_path / "written" / "1" / "helper.py").write_text("WHO = 'helper '")
    (tmp_path / "written" / "beside.py").write_text("WHO = 'beside'")
    with running(written_model(tmp_path, code)) as rt:
        assert rt.infer("written", X=[1.0])["Y"] == [b"helper helper beside"]


def test_each_instance_has_a_process_and_one_that_completed_the_config_is_the_first() -> None:
    model = python_model("upper", instance_group=[{"count": 2}])
    with running(model) as rt:
        pids = {instance.pid for instance in instances(rt, "upper")}
        assert len(pids) == 2
        assert os.getpid() not in pids


def test_a_model_that_is_never_loaded_leaves_no_process() -> None:
    model = python_model("upper")
    del model  # the fixture that looks for children does the rest


def test_finalize_is_called_and_may_still_print(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with running("repeat"):
        pass

    assert "finalized" in caplog.text


def test_a_server_that_stops_lets_every_model_finalize(tmp_path: Path) -> None:
    for name in ("one", "two", "three", "four"):
        shutil.copytree(REPOSITORY / "repeat", tmp_path / name)
    with ServerProcess(str(tmp_path)) as running:
        running.send(signal.SIGTERM)
        assert running.wait() == 0, running.log
        assert running.log.count("finalized") == 4, running.log


def test_tensors_that_the_configuration_only_begins_are_completed() -> None:
    made: Any = python_model("asked", input=[{"name": "X", "data_type": "TYPE_INT32"}])
    assert [(one.name, one.dims) for one in made.triton.input] == [("X", [1]), ("EXTRA", [1])]
    made.close()

    with pytest.raises(ConfigError, match=r"asked: output\[0\].dims: it needs dims"):
        python_model("asked", output=[{"name": "MORE", "data_type": "TYPE_STRING"}])


def test_two_versions_of_a_model_complete_their_own_configurations(rt: wherry.Runtime) -> None:
    completed = python_model("upper").triton

    assert [one.name for one in completed.input] == ["TEXT"]
    assert [one.data_type for one in completed.output] == ["TYPE_STRING", "TYPE_INT32"]
    assert completed.max_batch_size == 8
    assert completed.dynamic_batching is not None


def test_metrics_and_the_log_reach_the_server(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with running(python_model("counted", instance_group=[{"count": 2}])) as rt:
        counts = [rt.infer("counted", X=[value])["COUNT"][0] for value in (0.5, 5.0, 50.0)]
        model: Any = rt.model("counted").model
        families = {f.name: custom_metric(f) for f in merged([model.custom_metrics])}

    assert sorted(counts) == [1.0, 2.0, 3.0]
    (seen,) = families["seen_requests"].samples
    assert (seen.labels, seen.value) == ({"model": "counted", "way": "in"}, 3.0)
    buckets = [s.value for s in families["values"].samples if s.name == "values_bucket"]
    assert buckets == [1, 2, 3]
    assert "seen 5.0" in caplog.text
    assert "also seen 50.0" in caplog.text


def test_a_warm_up_runs_before_the_model_is_ready(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    sample = {"name": "one", "inputs": {"X": {"data_type": "TYPE_FP32", "dims": [1]}}}
    sample["inputs"]["X"]["zero_data"] = True  # type: ignore[index]
    with running(python_model("counted", model_warmup=[sample])) as rt:
        assert "seen 0.0" in caplog.text
        assert rt.model("counted").statistics.success.count == 0


def test_a_decoupled_model_warms_up_too() -> None:
    inputs = {"TIMES": {"data_type": "TYPE_INT32", "dims": [1], "random_data": True}}
    inputs["TIMES"] = {"data_type": "TYPE_INT32", "dims": [1], "zero_data": True}
    with running(python_model("repeat", model_warmup=[{"name": "one", "inputs": inputs}])) as rt:
        assert len(list(rt.stream("repeat", TIMES=[1]))) == 1


def test_is_ready_is_asked(tmp_path: Path) -> None:
    code = """
    def initialize(self, args):
        self.ready = True

    async def is_ready(self):
        return self.ready or None  # no bool: Triton takes that for no

    def execute(self, requests):
        x = requests[0].inputs()[0].as_numpy()
        self.ready = bool(x[0])
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)])]
"""
    with running(written_model(tmp_path, X_TO_Y % "BOOL" + code)) as rt:
        loaded = rt.model("written")
        assert loaded.not_ready_reason() == ""
        rt.infer("written", X=[False])
        until(lambda: "is_ready" in loaded.not_ready_reason())
        rt.infer("written", X=[True])
        until(lambda: loaded.not_ready_reason() == "")


def test_a_python_based_backend_has_its_program_elsewhere(tmp_path: Path) -> None:
    program = tmp_path / "backends" / "echo" / "model.py"
    program.parent.mkdir(parents=True)
    program.write_text(
        """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [1]})
        config.add_output({"name": "WHO", "data_type": "TYPE_STRING", "dims": [1]})
        return config

    def initialize(self, args):
        self.args = args

    def execute(self, requests):
        who = np.array([self.args["model_name"]], dtype=np.object_)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("WHO", who)]) for _ in requests]
"""
    )
    folder = tmp_path / "models" / "parrot"
    (folder / "1").mkdir(parents=True)
    model = backend_for(
        str(folder),
        "1",
        from_json({"name": "parrot", "backend": "echo"}),
        backend_directory=str(tmp_path / "backends"),
    )
    with running(model) as rt:
        assert rt.infer("parrot", X=[1.0])["WHO"] == [b"parrot"]


def test_an_environment_of_its_own_runs_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its libraries are found by name, but not by the programs that the model starts."""
    monkeypatch.setenv("LD_LIBRARY_PATH", "/of/the/server")
    environment = a_python_without_wherry(tmp_path / "environment")
    code = """
import os
import sys
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [-1]})
        config.add_output({"name": "WHERE", "data_type": "TYPE_STRING", "dims": [5]})
        return config

    def execute(self, requests):
        import importlib.util
        has = [importlib.util.find_spec(name) is not None for name in ("wherry", "msgspec")]
        with open("/proc/self/environ") as started:
            own = [one for one in started.read().split(chr(0)) if one.startswith("LD_LIBRARY")]
        paths = [own[0].partition("=")[2], os.environ["LD_LIBRARY_PATH"]]
        told = np.array([sys.prefix, *map(str, has), *paths], dtype=np.object_)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("WHERE", told)]) for _ in requests]
"""
    path = {"EXECUTION_ENV_PATH": {"string_value": "$$TRITON_MODEL_DIRECTORY/../environment"}}
    with running(written_model(tmp_path, code, parameters=path)) as rt:
        told = rt.infer("written", X=np.ones(5000, np.float32))["WHERE"]

    prefix, *has, started, here = [text.decode() for text in told]
    assert Path(prefix).resolve() == environment.resolve()
    assert has == ["False", "False"]
    own, others = started.split(os.pathsep)
    assert Path(own).resolve() == environment.resolve() / "lib"
    assert others == here == "/of/the/server"


def a_python_without_wherry(place: Path) -> Path:
    """An environment in which there is numpy and nothing else."""
    import venv

    venv.create(place, symlinks=True)
    (packages,) = place.glob("lib/python*/site-packages")
    installed = Path(np.__file__).parent.parent
    for name in installed.glob("numpy*"):
        (packages / name.name).symlink_to(name)
    return place


def test_nothing_is_left_when_the_server_is_killed(tmp_path: Path) -> None:
    """Also within the model's code, which hears of nothing."""
    import subprocess

    program = """
import sys, threading, time
sys.path.insert(0, sys.argv[1])
from tests.python_models import running
if __name__ == "__main__":
    with running("repeat") as rt:
        stream = rt.stream("repeat", TIMES=[-1])
        next(stream)
        print(rt.model("repeat").runner.instances[0].pid, flush=True)
        time.sleep(60)
"""
    file = tmp_path / "program.py"
    file.write_text(program)
    root = str(Path(__file__).parent.parent.parent)
    with subprocess.Popen(
        [sys.executable, str(file), root], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        pid = int(server.stdout.readline())
        server.kill()
    until(lambda: not Path(f"/proc/{pid}").exists() or "Z" in state_of(pid))


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


# Sequences


def test_a_sequence_model_gets_its_controls_and_the_server_keeps_its_state() -> None:
    with running("accumulate") as rt:

        def step(x: int, *, start: bool = False, end: bool = False, id: int = 5) -> Any:
            columns = {"X": np.array([[x]], np.int32)}
            at = SequenceStep(id, start, end)
            return response(
                sent(rt, "accumulate", columns, sequence=at, requested_outputs=["SUM"])
            ).outputs

        sums = [step(1, start=True), step(10), step(100, start=True, id=6), step(100, end=True)]
        assert [one["SUM"][0][0] for one in sums] == [1, 11, 100, 111]
        assert all(set(one) == {"SUM"} for one in sums)
        columns = {"X": np.array([[1]], np.int32)}
        told = response(sent(rt, "accumulate", columns, sequence=SequenceStep(6, end=True)))
        assert told.outputs["TOLD"] == [[b"6 0 6 2"]]
        assert told.outputs["SUM"][0][0] == 101


def test_an_iterative_sequence_gets_its_request_again() -> None:
    with running("countdown") as rt, ThreadPoolExecutor(6) as callers:
        steps = callers.map(lambda i: rt.infer("countdown", FROM=[i])["STEPS"][0], range(1, 7))
        assert list(steps) == [1, 2, 3, 4, 5, 6]


HOLDING = """
import threading
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_INT32", "dims": [1]})
        config.add_output({"name": "Y", "data_type": "TYPE_INT32", "dims": [1]})
        config.set_model_transaction_policy({"decoupled": True})
        return config

    def initialize(self, args):
        self.held = {}

    def send(self, sender, number, flags=0):
        tensor = pb_utils.Tensor("Y", np.array([number], np.int32))
        sender.send(pb_utils.InferenceResponse([tensor]), flags)

    def execute(self, requests):
        for request in requests:
            x = int(request.inputs()[0].as_numpy()[0])
            own = request.get_response_sender()
            first, turn, thread = self.held.pop(request.correlation_id(), (own, 0, None))
            if thread is not None:
                thread.join()
            if turn == 2:
                sender = first if x == 1 else own
                self.send(sender, 100, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                continue
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            thread = threading.Thread(target=self.send, args=(first, turn))  # perhaps between turns
            thread.start()
            self.held[request.correlation_id()] = (first, turn + 1, thread)
        return None
"""


def test_the_sender_of_a_request_that_runs_again_may_be_held(tmp_path: Path) -> None:
    model = written_model(tmp_path, HOLDING, sequence_batching={"iterative_sequence": True})
    with running(model) as rt, ThreadPoolExecutor(4) as callers:

        def turns(x: int) -> list[int]:
            return [int(one["Y"][0]) for one in rt.stream("written", X=[x])]

        assert list(callers.map(turns, [0, 1, 0, 1])) == [[0, 1, 100]] * 4
        (instance,) = instances(rt, "written")
        until(lambda: not instance._requests._open)


def test_who_leaves_between_two_turns_is_forgotten_with_the_next_batch(tmp_path: Path) -> None:
    code = """
    def execute(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        x = request.inputs()[0].as_numpy()
        if x[0] and not request.is_cancelled():
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return None
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)])
"""
    model = written_model(
        tmp_path, X_TO_Y % "INT32" + code, sequence_batching={"iterative_sequence": True}
    )
    with running(model) as rt:
        with pytest.raises(DeadlineExceeded):
            rt.infer("written", X=[1], timeout=0.2)
        assert rt.infer("written", X=[0])["Y"][0] == 0
        (instance,) = instances(rt, "written")
        until(lambda: not instance.open_requests)
        assert rt.model("written").runner.drain(None)


def test_an_async_decoupled_model_is_told_that_it_cannot_reschedule(tmp_path: Path) -> None:
    code = HOLDING.replace("    def execute", "    async def execute")
    model = written_model(tmp_path, code, sequence_batching={"iterative_sequence": True})
    with running(model) as rt, pytest.raises(ModelFailed, match="cannot reschedule"):
        list(rt.stream("written", X=[0]))


def test_rescheduling_is_for_iterative_sequences_only(tmp_path: Path) -> None:
    code = """
    def execute(self, requests):
        for request in requests:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        return None
"""
    wrong = pytest.raises(ModelFailed, match="iterative_sequence: true")
    with running(written_model(tmp_path, X_TO_Y % "FP32" + code)) as rt, wrong:
        rt.infer("written", X=[1.0])


# BF16


def test_bf16_goes_through_dlpack() -> None:
    pytest.importorskip("torch")
    with running("bf16") as rt:
        half = rt.infer("bf16", X=np.array([1.0, 3.0, 1e30], np.float32))["HALF"]

    np.testing.assert_allclose(half, [0.5, 1.5, 5e29], rtol=0.01)


# Over the wire


def test_a_repository_of_python_models_is_served(tmp_path: Path) -> None:
    """Through `wherry serve`: HTTP, streams, metrics, and models that load models."""
    import urllib.request

    for name in ("add_sub", "repeat", "counted", "caller"):
        shutil.copytree(REPOSITORY / name, tmp_path / name)

    def ask(url: str, body: Any = None) -> str:
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(url, data=data)) as answer:
            text: str = answer.read().decode()
            return text

    def told(url: str, **how: Any) -> Any:
        inputs = [
            {"name": "HOW", "shape": [1], "datatype": "BYTES", "data": [json.dumps(how)]},
            {"name": "X", "shape": [1], "datatype": "FP32", "data": [1.0]},
        ]
        answer = json.loads(ask(f"{url}/v2/models/caller/infer", {"inputs": inputs}))
        return answer["outputs"][0]["data"]

    options = ["--model-control-mode", "explicit", "--load-model", "repeat"]
    options += ["--load-model", "counted", "--load-model", "caller"]
    with running_server(str(tmp_path), *options) as url:
        stream = ask(f"{url}/v2/models/repeat/generate_stream", {"TIMES": 2})
        assert [json.loads(e[6:])["COUNT"] for e in stream.split("\n\n") if e] == [0, 1]
        ask(f"{url}/v2/models/counted/generate", {"X": 2.0})
        assert 'seen_requests{model="counted",way="in"} 1\n' in ask(f"{url}/metrics")
        assert told(url, do="ready", model="add_sub") == ["False"]
        assert told(url, do="load", model="add_sub") == ["done"]
        assert told(url, do="exec") == ["2.0"]
        assert told(url, do="load", model="add_sub", unload=True) == ["done"]
        assert "refused" in told(url, do="load", model="nowhere")[0]


# Under load


def test_killed_workers_are_back_quickly_and_every_request_is_answered_rightly() -> None:
    """A request whose process died is tried once more elsewhere; nobody gets another's answer."""
    with running(python_model("add_sub", instance_group=[{"count": 2}])) as rt:
        stop = threading.Event()

        def ask(number: int) -> int:
            answered = 0
            while not stop.is_set():
                a = np.full(3000, number, np.float32)
                try:
                    total = rt.infer("add_sub", A=a, B=a)["SUM"]
                except WorkerDied:  # twice in its life
                    continue
                assert (total == 2 * number).all()
                answered += 1
            return answered

        with ThreadPoolExecutor(8) as callers:
            counts = [callers.submit(ask, number) for number in range(8)]
            try:
                for kills in range(1, 5):
                    until(lambda: len(instances(rt, "add_sub")) == 2)
                    pid = instances(rt, "add_sub")[0].pid
                    if pid is not None:
                        os.kill(pid, signal.SIGKILL)
                    until(lambda: rt.model("add_sub").statistics.worker_restarts >= kills)  # noqa: B023
            finally:
                stop.set()
            assert all(count.result() for count in counts)


def test_threads_of_a_decoupled_model_call_and_send_at_the_same_time(tmp_path: Path) -> None:
    code = """
from concurrent.futures import ThreadPoolExecutor
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "N", "data_type": "TYPE_INT32", "dims": [1]})
        config.add_output({"name": "SUM", "data_type": "TYPE_FP32", "dims": [-1]})
        config.set_model_transaction_policy({"decoupled": True})
        return config

    def initialize(self, args):
        self.pool = ThreadPoolExecutor(8)

    def execute(self, requests):
        for request in requests:
            self.pool.submit(self.answer, request)

    def answer(self, request):
        sender = request.get_response_sender()
        for i in range(int(request.inputs()[0].as_numpy()[0])):
            x = np.full((1, (3, 5000, 50000)[i % 3]), i, np.float32)
            call = pb_utils.InferenceRequest(
                model_name="add_sub",
                requested_output_names=["SUM"],
                inputs=[pb_utils.Tensor("A", x), pb_utils.Tensor("B", x)],
            )
            (total,) = call.exec().output_tensors()
            if sender.is_cancelled():
                break
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("SUM", total.as_numpy()[0])]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def finalize(self):
        self.pool.shutdown()
"""

    def read(rt: wherry.Runtime, number: int) -> None:
        stream: Any = rt.stream("written", N=[number % 15])
        for i, one in enumerate(stream):
            assert (one["SUM"] == 2 * i).all()
            if number % 7 == 0 and i == 5:
                stream.close()  # leaves in the middle
                return
        assert i == number % 15 - 1

    with running("add_sub", written_model(tmp_path, code)) as rt:
        with ThreadPoolExecutor(16) as readers:
            numbers = [number for number in range(100) if number % 15]
            list(readers.map(partial(read, rt), numbers))
        until(lambda: not instances(rt, "written")[0].open_requests)


def test_execute_itself_sees_that_its_callers_time_is_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    code = """
    def execute(self, requests):
        print("it has begun")
        while not requests[0].is_cancelled():
            time.sleep(0.001)
        print("it is over")
"""
    with running(written_model(tmp_path, X_TO_Y % "FP32" + code)) as rt:
        request = sent(rt, "written", {"X": np.ones((1, 1), np.float32)}, timeout=600.0)
        until(lambda: "it has begun" in caplog.text)
        runner: Any = rt.model("written").runner
        clock = runner._clock
        runner._clock = lambda: clock() + 600.0
        runner.tick()
        with pytest.raises(wherry.DeadlineExceeded):
            response(request)
        until(lambda: "it is over" in caplog.text)


def test_a_model_that_hangs_is_killed_after_execution_timeout(tmp_path: Path) -> None:
    code = """
    def execute(self, requests):
        time.sleep(3600)
"""
    with wherry.Runtime() as rt:
        rt.load(written_model(tmp_path, X_TO_Y % "FP32" + code), execution_timeout=0.2)
        with pytest.raises(wherry.WherryError, match="execution_timeout"):
            rt.infer("written", X=[1.0])


# As Triton's own tests have it

ASKING = """
import asyncio
import json
import os
import sys

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_output({"name": "Y", "data_type": "TYPE_STRING", "dims": [-1]})
        return config

    def initialize(self, args):
        self.args = args
        self.bls = "nothing"
        request = pb_utils.InferenceRequest(
            model_name="other", inputs=[], requested_output_names=[]
        )
        try:
            request.exec()
        except pb_utils.TritonModelException as error:
            self.bls = str(error)

    def answer(self, told):
        text = np.array([json.dumps(told).encode()], dtype=np.object_)
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", text)])

    def execute(self, requests):
        return [self.answer(getattr(self, self.word(request))()) for request in requests]

    def word(self, request):
        return request.inputs()[0].as_numpy()[0].decode()

    def where(self):
        return [
            self.args["model_instance_name"],
            pb_utils.get_model_dir(),
            sys.argv,
            [one for one in sys.path if "written" in one],
            self.bls,
        ]
"""


def asked(rt: wherry.Runtime, what: str) -> Any:
    (answer,) = rt.infer("written", X=[what.encode()])["Y"]
    return json.loads(answer)


def test_a_model_finds_itself_as_in_triton(tmp_path: Path) -> None:
    folder = str(tmp_path / "written")
    with running(written_model(tmp_path, ASKING)) as rt:
        assert asked(rt, "where") == [
            "written_0",
            f"{folder}/1",
            [""],
            [f"{folder}/1", folder],
            "BLS is only supported during the 'execute' function.",
        ]


@pytest.mark.parametrize(
    ("groups", "name"),
    [
        ([{"kind": "KIND_CPU"}], "written_0_0"),
        ([{"kind": "KIND_CPU", "name": "cpu"}], "cpu_0"),
    ],
)
def test_an_instance_has_the_name_that_triton_gives_it(
    tmp_path: Path, groups: list[dict[str, Any]], name: str
) -> None:
    with running(written_model(tmp_path, ASKING, instance_group=groups)) as rt:
        assert asked(rt, "where")[0] == name
        with pytest.raises(ModelFailed, match=rf"\(s\) for model instance '{name}', message: Attr"):
            asked(rt, "nothing_of_that_name")


FORKING = """
import asyncio
import json
import multiprocessing
import os

import numpy as np
import triton_python_backend_utils as pb_utils

context = multiprocessing.get_context("fork")
counter = pb_utils.MetricFamily.COUNTER
family = pb_utils.MetricFamily("forked_total", "Counted in forked processes.", counter)
count = None


def doubled(model, x):
    request = pb_utils.InferenceRequest(
        model_name=model,
        inputs=[pb_utils.Tensor("A", x), pb_utils.Tensor("B", x)],
        requested_output_names=["SUM"],
    )
    response = request.exec()
    if response.has_error():
        raise ValueError(response.error().message())
    return pb_utils.get_output_tensor_by_name(response, "SUM").as_numpy()


def large(n):
    return float(doubled("add_sub", np.full((1, n), 2.0, np.float32)).sum())


def awaited(n):
    async def both():
        x = pb_utils.Tensor("A", np.full((1, 1), n, np.float32))
        requests = [
            pb_utils.InferenceRequest(
                model_name="add_sub",
                inputs=[x, pb_utils.Tensor("B", x.as_numpy())],
                requested_output_names=["SUM"],
            )
            for _ in range(2)
        ]
        return await asyncio.gather(*(request.async_exec() for request in requests))

    return [one.output_tensors()[0].as_numpy().tolist()[0][0] for one in asyncio.run(both())]


def strings(_):
    text = pb_utils.Tensor("TEXT", np.array([b"a", "\u00e4".encode()], dtype=np.object_))
    request = pb_utils.InferenceRequest(
        model_name="upper", inputs=[text], requested_output_names=["UPPER"]
    )
    return [one.decode() for one in request.exec().output_tensors()[0].as_numpy().ravel()]


def nobody(_):
    try:
        return doubled("nobody", np.zeros((1, 1), np.float32)).tolist()
    except ValueError as error:
        return str(error)


def ready(model):
    return pb_utils.is_model_ready(model)


def counted(n):
    count.increment(n)
    return count.value()


def grandchild(n):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, str(large(n)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    return float(os.read(reader, 100))


def streamed(_):
    request = pb_utils.InferenceRequest(
        model_name="repeat", inputs=[], requested_output_names=[]
    )
    try:
        return list(request.exec(decoupled=True))
    except pb_utils.TritonModelException as error:
        return str(error)


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_output({"name": "Y", "data_type": "TYPE_STRING", "dims": [-1]})
        return config

    def initialize(self, args):
        global count
        count = family.Metric()
        with context.Pool(1) as pool:
            try:
                pool.map(large, [1])
            except pb_utils.TritonModelException as error:
                self.begun = str(error)

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        what, *values = json.loads(request.inputs()[0].as_numpy()[0])
        if what == "begun":
            told = self.begun
        elif what == "died":
            told = self.died(request)
        elif what == "responding":
            told = self.responding(request)
        else:
            with context.Pool(4) as pool:
                told = pool.map(globals()[what], values)
        text = np.array([json.dumps(told).encode()], dtype=np.object_)
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", text)])

    def died(self, request):
        child = os.fork()
        if child == 0:
            large(1000)
            os.kill(os.getpid(), 9)
        os.waitpid(child, 0)
        return large(3)

    def responding(self, request):
        reader, writer = os.pipe()
        if os.fork() == 0:
            try:
                request.get_response_sender().send(pb_utils.InferenceResponse(), 1)
            except pb_utils.TritonModelException as error:
                os.write(writer, str(error).encode())
            os._exit(0)
        os.wait()
        told = os.read(reader, 4096).decode()
        os.close(reader)
        os.close(writer)
        return told
"""


@pytest.fixture(scope="module")
def forking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[wherry.Runtime]:
    folder = tmp_path_factory.mktemp("forking")
    with running(written_model(folder, FORKING), "add_sub", "upper", "repeat") as runtime:
        yield runtime


@pytest.mark.parametrize(
    ("what", "values", "told"),
    [
        ("large", [1, 3, 2_000_000] * 4, [4.0, 12.0, 8_000_000.0] * 4),
        ("awaited", [3, 5], [[6.0, 6.0], [10.0, 10.0]]),
        ("strings", [0], [["A", "\u00c4"]]),
        ("ready", ["add_sub", "nobody"], [True, False]),
        ("grandchild", [3], [12.0]),
        ("died", [], 12.0),
    ],
)
def test_processes_that_a_model_forks_call_others_by_the_models_own(
    forking: wherry.Runtime, what: str, values: list[Any], told: Any
) -> None:
    assert asked(forking, json.dumps([what, *values])) == told


def test_processes_that_a_model_forks_count_with_it(forking: wherry.Runtime) -> None:
    values = asked(forking, json.dumps(["counted", 1, 2, 3]))

    assert max(values) == 6.0


def test_a_forked_process_is_told_why_a_question_fails(forking: wherry.Runtime) -> None:
    (error,) = asked(forking, json.dumps(["nobody", 0]))
    assert "Model 'nobody' is not ready" in error
    (error,) = asked(forking, json.dumps(["streamed", 0]))
    assert "cannot call with decoupled=True" in error
    assert "cannot send responses" in asked(forking, json.dumps(["responding"]))
    assert "only supported during the 'execute'" in asked(forking, json.dumps(["begun"]))


def test_an_error_before_the_end_of_a_stream_ends_it_and_nothing_else(tmp_path: Path) -> None:
    code = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [1]})
        config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [1]})
        config.set_model_transaction_policy({"decoupled": True})
        return config

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            x = request.inputs()[0].as_numpy()
            if x[0] < 0:
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("below zero")))
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
    with running(written_model(tmp_path, code)) as rt:
        pid = instances(rt, "written")[0].pid
        for _ in range(2):
            with pytest.raises(ModelFailed, match="below zero"):
                list(rt.stream("written", X=np.array([-1.0], np.float32)))
            (one,) = rt.stream("written", X=np.array([1.0], np.float32))
            assert one["Y"].tolist() == [1.0]
        assert instances(rt, "written")[0].pid == pid


def test_tasks_that_async_execute_leaves_go_on(tmp_path: Path) -> None:
    code = """
    def initialize(self, args):
        self.tasks = []
        self.gate = asyncio.Event()

    async def execute(self, requests):
        for request in requests:
            x = request.inputs()[0].as_numpy()
            if x[0] < 0:
                self.gate.set()
            sender = request.get_response_sender()
            self.tasks.append(asyncio.create_task(self.later(x, sender)))

    async def later(self, x, sender):
        await self.gate.wait()
        sender.send(
            pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]),
            flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
        )
"""
    with running(written_model(tmp_path, X_TO_Y % "FP32" + code)) as rt:
        answers = [sent(rt, "written", {"X": np.array([[i]], np.float32)}) for i in range(8)]
        assert rt.infer("written", X=[-1.0])["Y"].tolist() == [-1.0]  # their execute() has returned
        assert [response(one).outputs["Y"][0] for one in answers] == list(range(8))


def test_a_metric_is_there_while_execute_still_runs(tmp_path: Path) -> None:
    code = """
    def execute(self, requests):
        kinds = pb_utils.MetricFamily
        first = kinds("seen", "the first words", kinds.COUNTER)
        second = kinds("seen", "other words", kinds.COUNTER)
        second.Metric().increment(3)
        try:
            kinds("seen", "", kinds.GAUGE)
        except pb_utils.TritonModelException as error:
            told = str(error)
        open(requests[0].inputs()[0].as_numpy()[0].decode()).close()
        text = np.array([told.encode()], dtype=np.object_)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", text)])]
"""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with running(written_model(tmp_path, X_TO_Y % "STRING" + code)) as rt:
        request = sent(rt, "written", {"X": [[str(gate).encode()]]})
        model: Any = rt.model("written").model
        store = model.custom_metrics
        until(lambda: store.value("seen", ()) == 3)
        with open(gate, "w"):
            assert "with another kind" in response(request).outputs["Y"][0][0].decode()
        (family,) = store.families()
        assert family.description == "the first words"


SHAPES = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_STRING", "dims": [-1, -1]})
        config.add_output({"name": "Y", "data_type": "TYPE_STRING", "dims": [-1, -1]})
        config.add_output({"name": "SHAPE", "data_type": "TYPE_INT32", "dims": [-1]})
        return config

    def execute(self, requests):
        inputs = [request.inputs()[0].as_numpy() for request in requests]
        return [
            pb_utils.InferenceResponse([
                pb_utils.Tensor("Y", x.swapaxes(-1, -2)),
                pb_utils.Tensor("SHAPE", np.array([x.shape] * len(x), np.int32)),
            ])
            for x in inputs
        ]
"""


def test_strings_arrive_in_their_shape_alone_in_parts_and_from_another_model(
    tmp_path: Path,
) -> None:
    names = [b"a", b"b", b"c", b"d", b"e", b"f"]
    wide, high = [[names[:3], names[3:]]], [[names[:2], names[2:4], names[4:]]]
    step = {"input_map": {"X": "X"}, "output_map": {"Y": "M"}, "model_name": "shapes"}
    last = {"input_map": {"X": "M"}, "output_map": {"SHAPE": "Z"}, "model_name": "shapes"}
    both = from_json(
        {
            "name": "twice",
            "platform": "ensemble",
            "max_batch_size": 2,
            "input": [{"name": "X", "data_type": "TYPE_STRING", "dims": [-1, -1]}],
            "output": [{"name": "Z", "data_type": "TYPE_INT32", "dims": [-1]}],
            "ensemble_scheduling": {"step": [{**one, "model_version": -1} for one in (step, last)]},
        }
    )
    shapes = written_model(tmp_path, SHAPES, "shapes", max_batch_size=2)
    with running(shapes, backend_for(str(tmp_path), "1", both)) as rt:
        answer = rt.infer_batch("shapes", X=wide * 2)
        assert np.asarray(answer["SHAPE"]).tolist() == [[2, 2, 3]] * 2
        assert [(row, row.shape) for row in answer["Y"]] == [
            (names[::3] + names[1::3] + names[2::3], (3, 2))
        ] * 2
        split = np.asarray(rt.infer_batch("shapes", X=high * 3)["SHAPE"])
        assert split.tolist() == [[2, 3, 2]] * 2 + [[1, 3, 2]]
        assert np.asarray(rt.infer_batch("twice", X=wide)["Z"]).tolist() == [[1, 3, 2]]
