from __future__ import annotations

import asyncio
import json
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import onnx
import onnxruntime  # noqa: F401 - it opens files of its own when it is imported, for the process
import pytest
from onnx import TensorProto, helper

import wherry
from wherry.core.values.errors import ConfigError, InvalidRequest, LoadFailed
from wherry.core.values.reply import Reply
from wherry.testing.suite import check_backend
from wherry.triton.backends.load import backend_for
from wherry.triton.backends.onnx import OnnxModel
from wherry.triton.repository.triton_config import (
    TritonConfig,
    TritonInput,
    TritonInstanceGroup,
    TritonOptimizationPolicy,
    TritonOptimizationPolicyExecutionAccelerators,
    TritonOptimizationPolicyExecutionAcceleratorsAccelerator,
    TritonOptimizationPolicyGraph,
    TritonOutput,
    TritonParameter,
    TritonTensorReshape,
)
from wherry.triton.repository.validate import problems_of

TWICE = TritonConfig(name="twice", backend="onnxruntime")


def save(
    folder: Path,
    shape: list[int | str],
    *,
    op: str = "Add",
    element: int = TensorProto.FLOAT,
) -> str:
    """A model Y = op(X, X) as version 1 of a folder."""
    graph = helper.make_graph(
        [helper.make_node(op, ["X", "X"] if op == "Add" else ["X"], ["Y"])],
        "g",
        [helper.make_tensor_value_info("X", element, shape)],
        [helper.make_tensor_value_info("Y", element, shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (folder / "1").mkdir()
    onnx.save(model, folder / "1" / "model.onnx")
    return str(folder)


def made(folder: str, config: TritonConfig = TWICE) -> OnnxModel:
    return OnnxModel(folder, "1", OnnxModel.completed(folder, "1", config))


def test_it_keeps_what_wherry_counts_on(tmp_path: Path) -> None:
    rows = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    check_backend("onnxruntime", save(tmp_path, ["N", 2]), X=rows)


def test_a_file_without_a_configuration_runs_in_batches(tmp_path: Path) -> None:
    model = made(save(tmp_path, ["N", 3]))

    assert model.triton.max_batch_size == 4
    assert model.triton.dynamic_batching is not None
    assert model.triton.input == [TritonInput(name="X", data_type="TYPE_FP32", dims=[3])]
    with wherry.Runtime(model) as runtime:
        rows = np.arange(6, dtype=np.float32).reshape(2, 3)
        np.testing.assert_array_equal(runtime.infer_batch("twice", X=rows)["Y"], 2 * rows)


def test_only_a_configuration_that_is_not_complete_gets_dynamic_batching(tmp_path: Path) -> None:
    """As in Triton: who says inputs and outputs and no scheduler wants none."""
    folder = save(tmp_path, ["N", 3])
    x = TritonInput(name="X", data_type="TYPE_FP32", dims=[3])
    y = TritonOutput(name="Y", data_type="TYPE_FP32", dims=[3])
    for inputs, outputs, batches in (([x], [y], False), ([x], [], True), ([], [y], True)):
        config = TritonConfig(
            name="twice", backend="onnxruntime", max_batch_size=4, input=inputs, output=outputs
        )
        made_of = made(folder, config)
        assert (made_of.triton.dynamic_batching is not None) == batches
        assert made_of.config().share_batches == batches


def test_a_number_for_each_row_is_one_element_to_clients(tmp_path: Path) -> None:
    """As in Triton: dims of a batch are never empty, and the file's shape is in `reshape`."""
    folder = save(tmp_path, ["N"])
    given = TritonTensorReshape()
    for config in (
        TWICE,
        TritonConfig(
            name="twice",
            backend="onnxruntime",
            max_batch_size=4,
            output=[TritonOutput(name="Y", data_type="TYPE_FP32", dims=[1], reshape=given)],
        ),
    ):
        model = made(folder, config)
        described = [TritonInput(name="X", data_type="TYPE_FP32", dims=[1], reshape=given)]
        assert (model.triton.input, model.triton.max_batch_size) == (described, 4)
        assert not list(problems_of(model.triton))
        with wherry.Runtime(model) as runtime:
            rows = np.array([[1.0], [2.0]], np.float32)
            np.testing.assert_array_equal(runtime.infer_batch("twice", X=rows)["Y"], 2 * rows)


def test_an_input_with_a_value_of_the_files_own_may_be_left_out(tmp_path: Path) -> None:
    value = TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("Mul", ["X", "F"], ["Y"])],
        "g",
        [
            helper.make_tensor_value_info("X", value, ["N"]),
            helper.make_tensor_value_info("F", value, [1]),
        ],
        [helper.make_tensor_value_info("Y", value, ["N"])],
        [helper.make_tensor("F", value, [1], [3.0])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (tmp_path / "1").mkdir()
    onnx.save(model, tmp_path / "1" / "model.onnx")
    x = TritonInput(name="X", data_type="TYPE_FP32", dims=[-1])
    factor = TritonInput(name="F", dims=[1], optional=True)

    assert [one.name for one in made(str(tmp_path), TWICE).triton.input] == ["X"]
    named = TritonConfig(name="twice", backend="onnxruntime", input=[x, factor])
    with wherry.Runtime(made(str(tmp_path), named)) as runtime:
        ones = np.ones(2, np.float32)
        np.testing.assert_array_equal(runtime.infer("twice", X=ones)["Y"], 3 * ones)
        other = np.array([5.0], np.float32)
        np.testing.assert_array_equal(runtime.infer("twice", X=ones, F=other)["Y"], 5 * ones)


def test_the_operator_may_say_how_many_rows_a_file_takes(tmp_path: Path) -> None:
    folder = save(tmp_path, ["N", 3])

    model = backend_for(folder, "1", TWICE, default_max_batch_size=16)
    own = backend_for(
        folder, "1", TritonConfig(name="twice", max_batch_size=2), default_max_batch_size=16
    )
    assert (model.triton.max_batch_size, own.triton.max_batch_size) == (16, 2)


def test_a_fixed_first_dimension_means_no_batches(tmp_path: Path) -> None:
    model = made(save(tmp_path, [2, 3]))

    assert model.triton.max_batch_size == 0
    with wherry.Runtime(model) as runtime:
        ones = np.ones((2, 3), np.float32)
        np.testing.assert_array_equal(runtime.infer("twice", X=ones)["Y"], 2 * ones)


def test_all_instances_share_one_session(tmp_path: Path) -> None:
    config = TritonConfig(
        name="twice", instance_group=[TritonInstanceGroup(count=3, kind="KIND_CPU")]
    )
    model = made(save(tmp_path, ["N", 3]), config)
    with wherry.Runtime(model) as runtime:
        instances = runtime.model("twice").runner.instances
        executables = [instance.executable for instance in instances]  # type: ignore[attr-defined]
        assert len(executables) == 3
        assert all(executable.model is model for executable in executables)
        session = model._session.value
    assert session is not None
    with pytest.raises(AssertionError):
        _ = model._session.value  # the last instance has let it go


def test_strings_go_in_and_out(tmp_path: Path) -> None:
    model = made(save(tmp_path, ["N", 2], op="Identity", element=TensorProto.STRING))
    with wherry.Runtime(model) as runtime:
        loaded = runtime.model("twice")
        response = asyncio.run(
            runtime.answer(loaded, {"X": [[b"a", "ü".encode()], [b"", b"c"]]}, 2)
        )
    assert response.outputs["Y"] == [[b"a", "ü".encode()], [b"", b"c"]]


def test_strings_keep_the_shape_that_the_file_leaves_open(tmp_path: Path) -> None:
    model = made(save(tmp_path, ["N", "a", "b"], op="Identity", element=TensorProto.STRING))
    rows = [[[b"a", b"b", b"c"], [b"d", b"e", b"f"]]] * 2
    with wherry.Runtime(model) as runtime:
        answer = runtime.infer_batch("twice", X=rows)["Y"]
    assert [(row, row.shape) for row in answer] == [
        ([b"a", b"b", b"c", b"d", b"e", b"f"], (2, 3))
    ] * 2


def test_strings_of_different_widths_share_no_batch(tmp_path: Path) -> None:
    model = made(save(tmp_path, ["N", "w"], op="Identity", element=TensorProto.STRING))
    with wherry.Runtime(model) as runtime:
        loaded = runtime.model("twice")
        one, three, other = (
            loaded.request({"X": [row]}, 1, Reply(lambda _: None)).shape_key
            for row in ([b"a"], [b"b", b"c", b"d"], [b"e"])
        )
    assert one == other != three


def test_a_string_that_is_no_text_fails_alone(tmp_path: Path) -> None:
    model = made(save(tmp_path, ["N", 1], op="Identity", element=TensorProto.STRING))
    with (
        wherry.Runtime(model) as runtime,
        pytest.raises(InvalidRequest, match="not UTF-8"),
    ):
        asyncio.run(runtime.answer(runtime.model("twice"), {"X": [[b"\xff"]]}, 1))


def test_reshape_is_between_the_clients_and_the_file(tmp_path: Path) -> None:
    config = TritonConfig(
        name="twice",
        max_batch_size=8,
        input=[
            TritonInput(
                name="X", data_type="TYPE_FP32", dims=[2, 2], reshape=TritonTensorReshape(shape=[4])
            ),
        ],
        output=[
            TritonOutput(
                name="Y", data_type="TYPE_FP32", dims=[2, 2], reshape=TritonTensorReshape(shape=[4])
            ),
        ],
    )
    model = made(save(tmp_path, ["N", 4]), config)
    with wherry.Runtime(model) as runtime:
        rows = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
        np.testing.assert_array_equal(runtime.infer_batch("twice", X=rows)["Y"], 2 * rows)


@pytest.mark.parametrize(
    ("tensor", "problem"),
    [
        (
            TritonInput(name="Z", data_type="TYPE_FP32", dims=[3]),
            "'Z' is not in the file; it has X",
        ),
        (TritonInput(name="X", data_type="TYPE_INT64", dims=[3]), "TYPE_INT64 in config.pbtxt"),
        (
            TritonInput(name="X", data_type="TYPE_FP32", dims=[4]),
            "has dims \\[4\\] in config.pbtxt",
        ),
    ],
)
def test_a_configuration_that_is_not_the_files_is_refused(
    tmp_path: Path, tensor: TritonInput, problem: str
) -> None:
    config = TritonConfig(name="twice", max_batch_size=8, input=[tensor])
    with pytest.raises(ConfigError, match=problem):
        made(save(tmp_path, ["N", 3]), config)


def test_a_configuration_without_all_inputs_is_refused(tmp_path: Path) -> None:
    config = TritonConfig(name="twice", max_batch_size=8)
    with pytest.raises(ConfigError, match="first dimension of 'X' is not open"):
        made(save(tmp_path, [2, 3]), config)


def test_no_file_and_a_broken_file_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no model\.onnx"):
        made(str(tmp_path))
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.onnx").write_bytes(b"no model")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        made(str(tmp_path))


def test_options_of_the_session_come_from_the_parameters(tmp_path: Path) -> None:
    config = TritonConfig(
        name="twice",
        parameters={"intra_op_thread_count": TritonParameter(string_value="2")},
        optimization=TritonOptimizationPolicy(graph=TritonOptimizationPolicyGraph(level=-1)),
    )
    model = made(save(tmp_path, ["N", 3]), config)
    with wherry.Runtime(model):
        options = model._session.value.get_session_options()
        assert options.intra_op_num_threads == 2
        assert options.graph_optimization_level.name == "ORT_DISABLE_ALL"


def test_a_parameter_that_is_no_number_names_itself(tmp_path: Path) -> None:
    config = TritonConfig(
        name="twice", parameters={"intra_op_thread_count": TritonParameter(string_value="many")}
    )
    model = made(save(tmp_path, ["N", 3]), config)
    with pytest.raises(LoadFailed, match="intra_op_thread_count"), wherry.Runtime(model):
        pass


def test_an_accelerator_that_is_not_there_says_what_is(tmp_path: Path) -> None:
    config = TritonConfig(
        name="twice",
        optimization=TritonOptimizationPolicy(
            execution_accelerators=TritonOptimizationPolicyExecutionAccelerators(
                cpu_execution_accelerator=[
                    TritonOptimizationPolicyExecutionAcceleratorsAccelerator(name="openvino")
                ]
            )
        ),
    )
    model = made(save(tmp_path, ["N", 3]), config)
    with (
        pytest.raises(LoadFailed, match="no OpenVINOExecutionProvider, only"),
        wherry.Runtime(model),
    ):
        pass


def test_a_tensor_without_dimensions_has_the_shape_of_none(tmp_path: Path) -> None:
    """Over HTTP, and in this process."""
    model = made(save(tmp_path, []))
    assert model.triton.max_batch_size == 0
    assert not list(problems_of(model.triton))
    body = b'{"inputs":[{"name":"X","datatype":"FP32","shape":[],"data":[3]}]}'
    with wherry.Server(model, port=0) as server, wherry.Client(server.url) as client:
        assert server.runtime.infer("twice", X=np.array(3.0, np.float32))["Y"] == 6.0
        assert client.infer("twice", X=3.0)["Y"] == 6.0
        url = f"{server.url}/v2/models/twice"
        with urlopen(f"{url}/infer", body) as answer:
            (output,) = json.load(answer)["outputs"]
        assert output == {"name": "Y", "datatype": "FP32", "shape": [], "data": [6.0]}
        with urlopen(url) as answer:
            assert json.load(answer)["inputs"] == [{"name": "X", "datatype": "FP32", "shape": []}]


@pytest.mark.parametrize("dims", [[1], [1, 1]])
def test_a_tensor_without_dimensions_may_have_some_of_one_for_clients(
    tmp_path: Path, dims: list[int]
) -> None:
    folder = save(tmp_path, [])
    config = TritonConfig(
        name="twice",
        input=[TritonInput(name="X", data_type="TYPE_FP32", dims=dims)],
        output=[TritonOutput(name="Y", data_type="TYPE_FP32", dims=dims)],
    )
    with wherry.Runtime(made(folder, config)) as runtime:
        found = np.asarray(runtime.infer("twice", X=np.full(dims, 3, np.float32))["Y"])
    assert backend_for(folder, "1", config).triton.input[0].dims == dims  # no problem
    assert (found.shape, found.tolist()) == (tuple(dims), np.full(dims, 6).tolist())
    for other in ([2], [1, 2], [-1]):
        config.input = [TritonInput(name="X", data_type="TYPE_FP32", dims=other)]
        with pytest.raises(ConfigError, match="'X' has dims"):
            made(folder, config)


def test_a_string_without_dimensions_goes_in_and_out(tmp_path: Path) -> None:
    model = made(save(tmp_path, [], op="Identity", element=TensorProto.STRING))
    with wherry.Runtime(model) as runtime:
        assert runtime.infer("twice", X=b"a")["Y"] == b"a"
