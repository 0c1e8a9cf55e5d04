"""How does a model of OpenVINO run, in its own format or one that it reads (ONNX, TensorFlow, ...)?

In threads that share one compiled model: each thread has its own inference request, and the GIL is
released while it computes. The parameters are those of Triton's OpenVINO backend.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from wherry.core.api import Array, Column, Columns, ConfigError, Device, InvalidRequest
from wherry.triton.backends.repository_model import RepositoryModel
from wherry.triton.backends.shared import (
    FileTensor,
    Shared,
    called_with,
    complete,
    library,
    parameter_text,
    parameter_truth,
    version_file,
    with_batching,
)
from wherry.triton.repository.triton_config import (
    TritonConfig,
    TritonDataType,
    TritonInput,
    TritonOutput,
)

#: Files and folders that are looked for.
FILES: Final = ("model.xml", "model.onnx", "model.saved_model", "model.pdmodel", "model.tflite")

#: The datatypes of config.pbtxt by OpenVINO's type names.
TYPES: Final[dict[str, TritonDataType]] = {
    "boolean": "TYPE_BOOL", "string": "TYPE_STRING",
    "u8": "TYPE_UINT8", "u16": "TYPE_UINT16", "u32": "TYPE_UINT32", "u64": "TYPE_UINT64",
    "i8": "TYPE_INT8", "i16": "TYPE_INT16", "i32": "TYPE_INT32", "i64": "TYPE_INT64",
    "f16": "TYPE_FP16", "f32": "TYPE_FP32", "f64": "TYPE_FP64",
}  # fmt: skip

#: Parameters that OpenVINO itself knows by these names.
_PROPERTIES: Final = (
    "PERFORMANCE_HINT", "INFERENCE_NUM_THREADS", "COMPILATION_NUM_THREADS", "NUM_STREAMS",
)  # fmt: skip


class OpenVinoModel(RepositoryModel):
    """A model that OpenVINO compiles. Its instances are threads that share what was compiled."""

    in_threads = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._compiled: Shared[CompiledModel] = Shared()

    @classmethod
    def completed(cls, folder: str, version: str, config: TritonConfig) -> TritonConfig:
        """Add names, types and shapes from the file, and check those that are there."""
        _, model = _read(os.path.join(folder, version), config)
        completed = complete(
            config,
            _described(config, config.input, model.inputs),
            _described(config, config.output, model.outputs),
        )
        return with_batching(completed)

    def take(self) -> bool:
        """True: TARGET_DEVICE is the device of all instances."""
        return True

    def load(self, device: Device) -> None:
        self._compiled.take(lambda: CompiledModel(self.version_folder, self.inside))

    def unload(self) -> None:
        self._compiled.give_back()

    def execute(self, **columns: Column) -> Columns:
        batched = self.triton.max_batch_size > 0
        return called_with(self._compiled.value, columns, self.inside, batched=batched)


class CompiledModel:
    """A compiled model, called with arrays by name. Any thread, also several at once."""

    def __init__(self, folder: str, config: TritonConfig) -> None:
        core, model = _read(folder, config)
        target = parameter_text(config, "TARGET_DEVICE") or "CPU"
        try:
            self._model = core.compile_model(model, target, _properties(config))
        except Exception as error:  # its errors have no base class of their own
            raise ConfigError(
                f"model {config.name!r}: it cannot be compiled for {target}: {_brief(error)}"
            ) from error
        self._name = config.name
        self._inputs = [(one.name, _port(one.name, self._model.inputs)) for one in config.input]
        self._outputs = [_port(one.name, self._model.outputs) for one in config.output]
        self._own = threading.local()

    def __call__(self, arrays: dict[str, Array]) -> list[Array]:
        request = getattr(self._own, "request", None)
        if request is None:
            request = self._own.request = self._model.create_infer_request()
        inputs = {port: arrays[name] for name, port in self._inputs if name in arrays}
        try:
            found = request.infer(inputs, share_inputs=True)
        except RuntimeError as error:  # of shapes that contradict each other, and of nothing else
            raise InvalidRequest(f"model {self._name!r}: {_brief(error)}") from None
        # The next call overwrites these.
        return [np.array(found[port]) for port in self._outputs]


def _read(folder: str, config: TritonConfig) -> tuple[Any, Any]:
    """OpenVINO's core, and the file's model with the sizes of the configuration."""
    # Without this package its import sends nothing to anyone, and starts no thread for that.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    openvino = library("openvino", config.name, "'wherry[openvino]'")
    path = version_file(folder, config, FILES)
    core = openvino.Core()
    if (extension := parameter_text(config, "CPU_EXTENSION_PATH")) is not None:
        core.add_extension(extension)
    try:
        model = core.read_model(path)
        sizes = _sizes(config, model)
        if sizes:
            model.reshape(sizes)
    except Exception as error:  # its errors have no base class of their own
        raise ConfigError(
            f"model {config.name!r}: {os.path.basename(path)} cannot be loaded: {_brief(error)}"
        ) from error
    return core, model


def _sizes(config: TritonConfig, model: Any) -> dict[Any, list[int]]:
    """The shapes to which inputs are set: those of config.pbtxt if it sets RESHAPE_IO_LAYERS, else
    with an open batch dimension if there are batches, unless it sets SKIP_OV_DYNAMIC_BATCHSIZE."""
    batched = config.max_batch_size > 0
    if parameter_truth(config, "RESHAPE_IO_LAYERS"):
        lead = [-1] if batched else []
        return {_port(one.name, model.inputs): [*lead, *one.dims] for one in config.input}
    if not batched or parameter_truth(config, "SKIP_OV_DYNAMIC_BATCHSIZE"):
        return {}
    shapes = {port: _shape(port) for port in model.inputs}
    fixed = any(shape and shape[0] != -1 for shape in shapes.values())
    return {port: [-1, *shape[1:]] for port, shape in shapes.items()} if fixed else {}


def _properties(config: TritonConfig) -> dict[str, str]:
    properties = {name: parameter_text(config, name) for name in _PROPERTIES}
    found = {name: value for name, value in properties.items() if value is not None}
    if parameter_truth(config, "HINT_BF16"):
        found["INFERENCE_PRECISION_HINT"] = "bf16"
    # One stream with all cores by default: waiting requests form a batch.
    return {"PERFORMANCE_HINT": "LATENCY", **found}


def _described(
    config: TritonConfig, tensors: Sequence[TritonInput | TritonOutput], ports: Sequence[Any]
) -> list[FileTensor]:
    known = [tensor.name for tensor in tensors]
    found = []
    for port in ports:
        names = sorted(port.get_names())
        name = next((one for one in names if one in known), names[0] if names else "")
        kind = port.get_element_type().get_type_name()
        if not name or kind not in TYPES:
            why = f", {name!r}, is a {kind}, which V2 has no word for"
            unnamed = ' has no name: model.output(0).tensor.set_names({"..."}) before it is saved'
            raise ConfigError(
                f"model {config.name!r}: a tensor of the file{why if name else unnamed}"
            )
        found.append(FileTensor(name, TYPES[kind], _shape(port)))
    return found


def _port(name: str, ports: Sequence[Any]) -> Any:
    for port in ports:
        if name in port.get_names():
            return port
    raise ConfigError(f"{name!r} is not in the file")


def _shape(port: Any) -> tuple[int, ...]:
    shape = port.get_partial_shape()
    if shape.rank.is_dynamic:
        return (-1,)
    return tuple(one.get_length() if one.is_static else -1 for one in shape)


def _brief(error: Exception) -> str:
    """The last line of a text that begins with places in its source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
