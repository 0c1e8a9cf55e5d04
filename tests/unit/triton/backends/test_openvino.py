from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wherry
from wherry.core.values.errors import ConfigError, InvalidRequest
from wherry.triton.backends.load import backend_for
from wherry.triton.backends.openvino import FILES
from wherry.triton.backends.shared import version_file
from wherry.triton.repository.triton_config import (
    TritonConfig,
    TritonInput,
    TritonOutput,
    TritonParameter,
)


def config(**fields: Any) -> TritonConfig:
    texts: dict[str, str] = fields.pop("parameters", {})
    values = {key: TritonParameter(string_value=value) for key, value in texts.items()}
    return TritonConfig(name="m", backend="openvino", parameters=values, **fields)


def test_the_file_may_be_in_any_format_that_is_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no model\.xml or model\.onnx or"):
        version_file(str(tmp_path), config(), FILES)
    (tmp_path / "model.saved_model").mkdir()
    assert version_file(str(tmp_path), config(), FILES) == str(tmp_path / "model.saved_model")
    (tmp_path / "net.onnx").touch()
    named = config(default_model_filename="net.onnx")
    assert version_file(str(tmp_path), named, FILES) == str(tmp_path / "net.onnx")


def test_without_openvino_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.xml").touch()
    monkeypatch.setitem(__import__("sys").modules, "openvino", None)

    with pytest.raises(ConfigError, match=r"needs openvino, .*: pip install 'wherry\[openvino\]'"):
        backend_for(str(tmp_path), "1", TritonConfig(name="m"))


def save(folder: Path, shape: list[int]) -> str:
    """Y = 2 X, as version 1."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type] # as the backend
    openvino = pytest.importorskip("openvino")
    from openvino import opset13 as ops

    x = ops.parameter(openvino.PartialShape(shape), np.float32, name="X")
    x.output(0).set_names({"X"})
    y = ops.multiply(x, np.float32(2))
    y.output(0).set_names({"Y"})
    (folder / "1").mkdir()
    openvino.save_model(openvino.Model([y], [x], "twice"), folder / "1" / "model.xml", False)
    return str(folder)


def doubled(folder: str, triton: TritonConfig, rows: int) -> Any:
    model = backend_for(folder, "1", triton)
    with wherry.Runtime(model) as runtime:
        return np.asarray(runtime.infer_batch("m", X=np.ones((rows, 3), np.float32))["Y"]).tolist()


def test_a_file_needs_no_configuration(tmp_path: Path) -> None:
    folder = save(tmp_path, [-1, 3])
    model = backend_for(folder, "1", TritonConfig(name="m"))

    assert model.triton.backend == "openvino"
    assert model.triton.max_batch_size == 4
    assert model.triton.input == [TritonInput(name="X", data_type="TYPE_FP32", dims=[3])]
    assert model.triton.output == [TritonOutput(name="Y", data_type="TYPE_FP32", dims=[3])]
    assert doubled(folder, TritonConfig(name="m"), 2) == [[2, 2, 2]] * 2


def test_a_fixed_batch_dimension_is_opened_for_batches(tmp_path: Path) -> None:
    folder = save(tmp_path, [1, 3])

    assert backend_for(folder, "1", TritonConfig(name="m")).triton.max_batch_size == 0
    assert doubled(folder, config(max_batch_size=8), 5) == [[2, 2, 2]] * 5
    fixed = {"SKIP_OV_DYNAMIC_BATCHSIZE": "YES"}
    with pytest.raises(ConfigError, match="the first dimension of 'X' is not open"):
        backend_for(folder, "1", config(max_batch_size=8, parameters=fixed))


def test_the_sizes_of_the_configuration_hold_if_it_says_so(tmp_path: Path) -> None:
    folder = save(tmp_path, [1, 5])
    wanted = config(
        max_batch_size=2,
        input=[TritonInput(name="X", data_type="TYPE_FP32", dims=[3])],
        parameters={"RESHAPE_IO_LAYERS": "yes", "NUM_STREAMS": "1", "PERFORMANCE_HINT": "LATENCY"},
    )

    assert backend_for(folder, "1", wanted).triton.output[0].dims == [3]
    assert doubled(folder, wanted, 2) == [[2, 2, 2]] * 2


def test_what_is_not_the_files_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path, [-1, 3])
    wrong = config(input=[TritonInput(name="X", data_type="TYPE_INT32", dims=[-1, 3])])
    with pytest.raises(ConfigError, match=r"'X' is TYPE_INT32 in config\.pbtxt, TYPE_FP32"):
        backend_for(folder, "1", wrong)
    nowhere = config(parameters={"TARGET_DEVICE": "TPU"})
    with (
        pytest.raises(wherry.LoadFailed, match="cannot be compiled for TPU"),
        wherry.Runtime(backend_for(folder, "1", nowhere)),
    ):
        pass
    gc.collect()  # the error's traceback holds the model, and that its file


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.xml").write_text("<net/>")
    with pytest.raises(ConfigError, match=r"model\.xml cannot be loaded: "):
        backend_for(str(tmp_path), "1", config())


def test_a_shape_that_the_model_refuses_is_the_callers_mistake(tmp_path: Path) -> None:
    folder = save(tmp_path, [-1, 3])
    loose = config(
        max_batch_size=2, input=[TritonInput(name="X", data_type="TYPE_FP32", dims=[-1])]
    )
    with (
        wherry.Runtime(backend_for(folder, "1", loose)) as runtime,
        pytest.raises(InvalidRequest, match="model 'm': "),
    ):
        runtime.infer("m", X=np.ones(4, np.float32))
