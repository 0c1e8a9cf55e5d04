"""Sequences of repository models: an ONNX file with implicit state, a model.py that adds up."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime  # noqa: F401 - it opens files of its own when it is imported, for the process
import pytest
from onnx import TensorProto, helper

from tests.fakes import threads
from wherry import InvalidRequest, Runtime, SequenceStep
from wherry.triton.backends.load import backend_for
from wherry.triton.repository.pbtxt import parse

CONTROLS = """
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
    { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } ] },
    { name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: %s } ] }
  ]
"""
TENSORS = """
max_batch_size: 4
input { name: "X" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "SUM" data_type: TYPE_INT32 dims: [ 1 ] }
"""

ADDING = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            x, start, ready, corrid = (
                pb_utils.get_input_tensor_by_name(request, name).as_numpy()
                for name in ("X", "START", "READY", "CORRID")
            )
            total = np.zeros_like(x)
            if ready[0, 0]:
                key = corrid[0, 0]
                same = key.decode() if isinstance(key, bytes) else int(key)
                assert str(same) == str(request.correlation_id())
                flag = request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
                assert bool(flag) == (start[0, 0] == 1)
                total = x + (0 if start[0, 0] else self.sums[key])
                self.sums[key] = total
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("SUM", total)]))
        return responses
"""

#: In a warm-up several rows are of one request, with one id.
ADDING_WITHOUT_IDS = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x, start, ready = (
                pb_utils.get_input_tensor_by_name(request, name).as_numpy()
                for name in ("X", "START", "READY")
            )
            assert start.shape == ready.shape == x.shape
            assert (start == 1).all() and (ready == 1).all()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("SUM", x)]))
        return responses
"""

COUNTING_DOWN = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.left = {}
        self.batches = 0

    def execute(self, requests):
        self.batches += 1
        responses = []
        for request in requests:
            id = request.correlation_id()
            if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
                x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
                self.left[id] = [int(x[0, 0]), 0]
            left = self.left[id]
            left[0] -= 1
            left[1] += 1
            if left[0] > 0:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                responses.append(None)
                continue
            told = np.array([[left[1]]], np.int32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("SUM", told)]))
        return responses
"""


@contextmanager
def served(folder: Path, text: str, **how: Any) -> Iterator[Runtime]:
    (folder / "1").mkdir(exist_ok=True)
    config = parse(f'name: "adder" {text}', "config.pbtxt")
    with Runtime(backend_for(str(folder), "1", config, **how)) as runtime:
        yield runtime


def add(runtime: Runtime, x: int, id: int | str, *, start: bool = False, end: bool = False) -> int:
    return int(runtime.infer("adder", X=[x], sequence_step=SequenceStep(id, start, end))["SUM"][0])


def save_onnx(folder: Path) -> None:
    """SUM = X + START * 0 + OLD, NEW = SUM + 0: its sum comes back as its state."""
    (folder / "1").mkdir()
    shape: list[str | int | None] = ["N", 1]
    element = TensorProto.INT32
    names = ["X", "START", "READY", "OLD"]
    graph = helper.make_graph(
        [
            helper.make_node("Sub", ["START", "START"], ["ZERO"]),
            helper.make_node("Mul", ["X", "READY"], ["MINE"]),
            helper.make_node("Add", ["MINE", "OLD"], ["BOTH"]),
            helper.make_node("Add", ["BOTH", "ZERO"], ["SUM"]),
            helper.make_node("Identity", ["SUM"], ["NEW"]),
            helper.make_node("Identity", ["CORRID"], ["WHO"]),
        ],
        "g",
        [
            *(helper.make_tensor_value_info(name, element, shape) for name in names),
            helper.make_tensor_value_info("CORRID", TensorProto.UINT64, shape),
        ],
        [
            helper.make_tensor_value_info("SUM", element, shape),
            helper.make_tensor_value_info("NEW", element, shape),
            helper.make_tensor_value_info("WHO", TensorProto.UINT64, shape),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / "1" / "model.onnx")


STATE = """
  state [ { input_name: "OLD" output_name: "NEW" data_type: TYPE_INT32 dims: [ 1 ]
            initial_state { name: "i" data_type: TYPE_INT32 dims: [ 1 ] data_file: "hundred" } } ]
"""


@pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 8 }"])
@pytest.mark.parametrize("tensors", [TENSORS, "max_batch_size: 4"])
def test_an_onnx_file_gets_its_state_back_from_the_server(
    tmp_path: Path, strategy: str, tensors: str
) -> None:
    save_onnx(tmp_path)
    (tmp_path / "initial_state").mkdir()
    (tmp_path / "initial_state" / "hundred").write_bytes(np.array([100], np.int32).tobytes())
    text = f"{tensors} sequence_batching {{ {strategy} {CONTROLS % 'TYPE_UINT64'} {STATE} }}"
    with served(tmp_path, text, auto_complete=True) as runtime:
        loaded = runtime.model("adder")
        assert [spec.name for spec in loaded.signature.inputs] == ["X"]
        assert "NEW" not in [spec.name for spec in loaded.signature.outputs]
        for id in (7, 2**64 - 1):
            assert add(runtime, 1, id, start=True) == 101
        assert add(runtime, 2, 7) == 103
        assert add(runtime, 5, 2**64 - 1) == 106
        assert add(runtime, 3, 7, end=True) == 106
        assert add(runtime, 1, 7, start=True) == 101
        assert runtime.infer("adder", X=[4], sequence_step=SequenceStep(7, end=True)).keys() <= {
            "SUM",
            "WHO",
        }


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 8 }"])
@pytest.mark.parametrize("datatype", ["TYPE_UINT64", "TYPE_STRING"])
def test_a_model_py_adds_up_for_many_callers_at_once(
    tmp_path: Path, strategy: str, datatype: str
) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.py").write_text(ADDING)
    batching = f"sequence_batching {{ {strategy} {CONTROLS % datatype} }}"
    text = f"{TENSORS} {batching} instance_group {{ count: 2 kind: KIND_CPU }}"

    def walk(runtime: Runtime, number: int) -> None:
        id = number if datatype == "TYPE_UINT64" else f"caller {number}"
        for turn in range(3):
            sums = [
                add(runtime, x + turn, id, start=x == 0, end=x == number) for x in range(number + 1)
            ]
            assert sums == np.cumsum(np.arange(number + 1) + turn).tolist()

    with served(tmp_path, text) as runtime:
        with threads(10, lambda number: walk(runtime, number + 1)):
            pass
        with pytest.raises(InvalidRequest, match="START"):
            add(runtime, 1, 1)
        assert runtime.model("adder").statistics.success.count == 3 * sum(range(2, 12))


GROWING = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.one(*(tensor.as_numpy() for tensor in r.inputs())) for r in requests]

    def one(self, x, old):
        tensors = [pb_utils.Tensor("SUM", x + old.sum(dtype=np.int32))]
        if x[0]:
            tensors.append(pb_utils.Tensor("NEW", np.append(old, x)))
        return pb_utils.InferenceResponse(tensors)
"""


@pytest.mark.parametrize("declared", [False, True])
def test_a_state_may_grow_stays_if_none_is_given_and_is_told_if_it_is_declared(
    tmp_path: Path, declared: bool
) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.py").write_text(GROWING)
    new = 'output { name: "NEW" data_type: TYPE_INT32 dims: [ -1 ] }' if declared else ""
    text = f"""
        input {{ name: "X" data_type: TYPE_INT32 dims: [ 1 ] }}
        output {{ name: "SUM" data_type: TYPE_INT32 dims: [ 1 ] }} {new}
        sequence_batching {{ state {{ input_name: "OLD" output_name: "NEW" data_type: TYPE_INT32
            dims: [ -1 ] initial_state {{ name: "i" data_type: TYPE_INT32 dims: [ 1 ]
            zero_data: true }} }} }}"""
    with served(tmp_path, text) as runtime:
        answers = [
            runtime.infer("adder", X=[x], sequence_step=SequenceStep(1, start=not turn))
            for turn, x in enumerate([1, 0, 2, 0])
        ]
    assert [int(answer["SUM"][0]) for answer in answers] == [1, 1, 3, 3]
    grown = [answer["NEW"].tolist() for answer in answers if answer.get("NEW") is not None]
    assert grown == ([[0, 1], [0, 1, 2]] if declared else [])


@pytest.mark.slow
def test_an_iterative_model_py_has_its_requests_until_it_is_done(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.py").write_text(COUNTING_DOWN)
    text = f"{TENSORS} sequence_batching {{ iterative_sequence: true }}"
    told: dict[int, int] = {}

    def ask(runtime: Runtime, n: int) -> None:
        told[n] = int(runtime.infer("adder", X=[n])["SUM"][0])

    with served(tmp_path, text) as runtime:
        with threads(8, lambda number: ask(runtime, number + 1)):
            pass
        assert runtime.model("adder").runner.explain()["open_sequences"] == 0
    assert told == {n: n for n in range(1, 9)}


WARM_UP = """
  model_warmup [ { name: "w" batch_size: 3 count: 2
                   inputs { key: "X"
                            value { data_type: TYPE_INT32 dims: [ 1 ] zero_data: true } } } ]
"""


@pytest.mark.slow
@pytest.mark.parametrize("file", ["onnx", "py"])
def test_a_warm_up_is_a_sequence_of_one_step(tmp_path: Path, file: str) -> None:
    """The model would raise without its controls, and the load would fail."""
    if file == "onnx":
        save_onnx(tmp_path)
        states = STATE.replace('data_file: "hundred"', "zero_data: true")
    else:
        (tmp_path / "1").mkdir()
        (tmp_path / "1" / "model.py").write_text(ADDING_WITHOUT_IDS)
        states = ""
    batching = f"sequence_batching {{ {CONTROLS % 'TYPE_UINT64'} {states} }}"
    with served(tmp_path, f"{TENSORS} {batching} {WARM_UP}") as runtime:
        assert add(runtime, 4, 1, start=True, end=True) == 4
