"""triton/backends/onnx.py: rows of different shapes share a batch of a model that asks for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime  # noqa: F401 - it opens files of its own when it is imported, for the process
import pytest
from onnx import TensorProto, helper

import wherry
from wherry.core.values.errors import BadModelOutput, ConfigError
from wherry.triton.backends.onnx import OnnxModel, batch_inputs
from wherry.triton.repository import pbtxt

CONFIG = """max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 60000000 }
input { name: "X" data_type: TYPE_FP32 dims: -1 allow_ragged_batch: true }
output { name: "Y" data_type: TYPE_FP32 dims: -1 }
output { name: "SIZE" data_type: TYPE_FP32 dims: 1 }
batch_input {
  kind: BATCH_ELEMENT_COUNT target_name: "COUNT" data_type: TYPE_FP32 source_input: "X" }
batch_output { target_name: "Y" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "X" }
"""


def save(folder: Path, *, y: str = "Identity") -> str:
    """Y = X, all rows in one; SIZE = COUNT, as a column."""
    axis = helper.make_tensor("axis", TensorProto.INT64, [1], [1])
    graph = helper.make_graph(
        [
            helper.make_node("Identity", ["X"], ["Y"])
            if y == "Identity"
            else helper.make_node("Concat", ["X", "X"], ["Y"], axis=0),
            helper.make_node("Unsqueeze", ["COUNT", "axis"], ["SIZE"]),
        ],
        "g",
        [
            helper.make_tensor_value_info("X", TensorProto.FLOAT, ["all"]),
            helper.make_tensor_value_info("COUNT", TensorProto.FLOAT, ["N"]),
        ],
        [
            helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["out"]),
            helper.make_tensor_value_info("SIZE", TensorProto.FLOAT, ["N", 1]),
        ],
        [axis],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "1").mkdir(parents=True)
    onnx.save(model, folder / "1" / "model.onnx")
    return str(folder)


def made(folder: str, config: str = CONFIG) -> OnnxModel:
    read = pbtxt.parse(f'name: "r" {config}', "config.pbtxt")
    return OnnxModel(folder, "1", OnnxModel.completed(folder, "1", read))


def test_rows_of_different_lengths_share_a_batch_and_get_back_their_own(tmp_path: Path) -> None:
    rows = [np.full(n, n, np.float32) for n in (2, 4, 1, 3)]
    with wherry.Runtime(made(save(tmp_path / "r"))) as runtime:
        answers = list(runtime.map("r", [{"X": row} for row in rows]))
        for answer, row in zip(answers, rows, strict=True):
            np.testing.assert_array_equal(answer["Y"], row)
            assert answer["SIZE"].tolist() == [len(row)]
        counted = runtime.model("r").statistics
        assert counted.batch_sizes.keys() == {4}  # all in one


def test_an_output_of_another_size_is_the_models_mistake(tmp_path: Path) -> None:
    with wherry.Runtime(made(save(tmp_path / "r", y="Concat"))) as runtime:
        row = np.ones((1, 3), np.float32)
        with pytest.raises(BadModelOutput, match=r"output 'Y' has 6 elements.*have 3"):
            runtime.infer_batch("r", X=[*row], timeout=20)


@pytest.mark.parametrize(
    ("kind", "tensor"),
    [
        ("BATCH_ELEMENT_COUNT", [4, 2, 6]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT", [4, 6, 12]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", [0, 4, 6, 12]),
        ("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", [0] * 6),
        ("BATCH_ITEM_SHAPE", [[4, 1], [1, 2], [2, 3]]),
        ("BATCH_ITEM_SHAPE_FLATTEN", [4, 1, 1, 2, 2, 3]),
    ],
)
def test_each_kind_of_batch_input_says_where_rows_end(kind: str, tensor: list[Any]) -> None:
    config = pbtxt.parse(CONFIG.replace("BATCH_ELEMENT_COUNT", kind), "config.pbtxt")
    ((name, array),) = batch_inputs(config, {"X": [(4, 1), (1, 2), (2, 3)]})
    assert name == "COUNT"
    assert array.dtype == np.float32
    assert array.tolist() == tensor


def test_an_optional_source_that_nobody_sent_makes_nothing() -> None:
    assert list(batch_inputs(pbtxt.parse(CONFIG, "config.pbtxt"), {})) == []


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (CONFIG.replace('source_input: "X" }\nb', 'source_input: "Z" }\nb'), r"batch_input\[0\].s"),
        (CONFIG.replace("allow_ragged_batch: true", ""), r"batch_input\[0\].source_input must be"),
        (CONFIG.replace('target_name: "COUNT"', 'target_name: "C"'), "more inputs than config.pbt"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(
    tmp_path: Path, config: str, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        made(save(tmp_path / "r"), config)
