"""How does an ONNX file of a repository run?

In threads that share one session for each device: ONNX Runtime releases the GIL while it computes
and is thread-safe, so one copy of the weights serves all instances. An operator uses one thread
unless configured otherwise: instances fill the cores, at about half the CPU time for each row.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import numpy as np

from wherry.core.api import (
    Array,
    Column,
    Columns,
    ConfigError,
    Device,
    InvalidRequest,
    cpu_instead,
)
from wherry.triton.backends import shared
from wherry.triton.backends.repository_model import RepositoryModel
from wherry.triton.backends.shared import (
    FileTensor,
    Shared,
    called_with,
    library,
    parameter_whole,
    version_file,
)
from wherry.triton.repository.normalise import inside
from wherry.triton.repository.triton_config import (
    TritonConfig,
    TritonDataType,
    TritonInput,
    TritonOutput,
)

FILE: Final = "model.onnx"

#: The datatypes of config.pbtxt by ONNX Runtime's type names.
TYPES: Final[Mapping[str, TritonDataType]] = {
    "tensor(bool)": "TYPE_BOOL", "tensor(string)": "TYPE_STRING",
    "tensor(uint8)": "TYPE_UINT8", "tensor(uint16)": "TYPE_UINT16",
    "tensor(uint32)": "TYPE_UINT32", "tensor(uint64)": "TYPE_UINT64",
    "tensor(int8)": "TYPE_INT8", "tensor(int16)": "TYPE_INT16",
    "tensor(int32)": "TYPE_INT32", "tensor(int64)": "TYPE_INT64",
    "tensor(float16)": "TYPE_FP16", "tensor(float)": "TYPE_FP32", "tensor(double)": "TYPE_FP64",
}  # fmt: skip

#: Execution providers by their names in config.pbtxt.
ACCELERATORS: Final = {
    "cuda": "CUDAExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}


class OnnxModel(RepositoryModel):
    """A model in an ONNX file. Its instances on one device are threads that share one session."""

    in_threads = True
    default_instances = 2  # Triton's, on the CPU

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._session: Shared[Any] = Shared()

    @classmethod
    def completed(cls, folder: str, version: str, config: TritonConfig) -> TritonConfig:
        """Add names, types and shapes from the file, and its batch dimension if all tensors have
        one."""
        path = model_file(folder, version, config)
        options = _onnxruntime(config.name).SessionOptions()
        options.log_severity_level = 3
        options.graph_optimization_level = _onnxruntime().GraphOptimizationLevel.ORT_DISABLE_ALL
        session = _session(path, options, ["CPUExecutionProvider"], config.name)
        named = {tensor.name for tensor in config.input}
        also = [one for one in session.get_overridable_initializers() if one.name in named]
        return complete(config, [*session.get_inputs(), *also], session.get_outputs())

    def take(self) -> bool:
        """True if all instances are on one device: they share this object. Else as for any
        model."""
        return len({group.device for group in self.config().instances}) == 1 or super().take()

    def load(self, device: Device) -> None:
        self._session.take(lambda: self._open(device))

    def unload(self) -> None:
        self._session.give_back()

    def execute(self, **columns: Column) -> Columns:
        batched = self.triton.max_batch_size > 0
        return called_with(self._run, columns, self.inside, batched=batched)

    def _run(self, arrays: dict[str, Array]) -> list[Array]:
        feeds = {name: _texts(array) for name, array in arrays.items()}
        names = [tensor.name for tensor in self.inside.output]
        try:
            results: list[Array] = self._session.value.run(names, feeds)
        except Exception as error:  # its errors have no base class of their own
            if type(error).__name__ != "InvalidArgument":
                raise
            # The inputs' shapes contradict each other, which is the caller's mistake.
            raise InvalidRequest(f"model {self.triton.name!r}: {error}") from None
        return results

    def _open(self, device: Device) -> Any:
        path = model_file(self.folder, self.version, self.triton)
        options, name = session_options(self.triton), self.triton.name
        try:
            return _session(path, options, providers(self.triton, device), name)
        except ConfigError as error:
            if not device.automatic:
                raise
            device = cpu_instead(device, name, str(error))
        return _session(path, options, providers(self.triton, device), name)


def complete(config: TritonConfig, inputs: Any, outputs: Any) -> TritonConfig:
    inputs = _of_callers(inputs, inside(config).input, config.input)
    outputs = _of_callers(outputs, inside(config).output, config.output)
    return shared.complete(
        config,
        [_tensor(config.name, tensor) for tensor in inputs],
        [_tensor(config.name, tensor) for tensor in outputs],
    )


def _of_callers(
    found: Any,
    all_of_them: Sequence[TritonInput | TritonOutput],
    config_tensors: Sequence[TritonInput | TritonOutput],
) -> list[Any]:
    """The file's tensors without those that only server and model exchange."""
    added = {tensor.name for tensor in all_of_them} - {tensor.name for tensor in config_tensors}
    return [tensor for tensor in found if tensor.name not in added]


def _tensor(model: str, tensor: Any) -> FileTensor:
    if tensor.type not in TYPES:
        instead = "; export it with zipmap off" if "map(" in tensor.type else ""
        raise ConfigError(
            f"model {model!r}: {tensor.name!r} is a {tensor.type}, which V2 has no word"
            f" for{instead}"
        )
    shape = [size if isinstance(size, int) else -1 for size in tensor.shape]
    return FileTensor(tensor.name, TYPES[tensor.type], tuple(shape))


def model_file(folder: str, version: str, config: TritonConfig) -> str:
    """The path of a version's file, which may lie in a folder beside its external weights."""
    path = version_file(os.path.join(folder, version), config, [FILE])
    return os.path.join(path, FILE) if os.path.isdir(path) else path


def session_options(config: TritonConfig) -> Any:
    runtime = _onnxruntime(config.name)
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = _whole(config, "intra_op_thread_count", 1)
    options.inter_op_num_threads = _whole(config, "inter_op_thread_count", 1)
    if _whole(config, "execution_mode", 0):
        options.execution_mode = runtime.ExecutionMode.ORT_PARALLEL
    for name in ("enable_mem_arena", "enable_mem_pattern"):
        if name in config.parameters:
            ours = "enable_cpu_mem_arena" if name == "enable_mem_arena" else name
            setattr(options, ours, bool(_whole(config, name, 1)))
    if config.optimization is not None and config.optimization.graph is not None:
        levels = runtime.GraphOptimizationLevel
        by_number = {-1: levels.ORT_DISABLE_ALL, 1: levels.ORT_ENABLE_EXTENDED}
        level = config.optimization.graph.level
        options.graph_optimization_level = by_number.get(level, levels.ORT_ENABLE_ALL)
    # A spinning thread would take a core from the other instances.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def providers(config: TritonConfig, device: Device) -> list[Any]:
    """Execution providers in order of preference. ConfigError for one that this build lacks."""
    provider_list: list[Any] = []
    if config.optimization is not None and config.optimization.execution_accelerators is not None:
        accelerators = config.optimization.execution_accelerators
        provider_list += [
            (ACCELERATORS.get(one.name, one.name), dict(one.parameters))
            for one in (
                accelerators.gpu_execution_accelerator
                if device.kind == "cuda"
                else accelerators.cpu_execution_accelerator
            )
        ]
    if device.kind == "cuda":
        provider_list.append(("CUDAExecutionProvider", {"device_id": str(device.index)}))
    available = _onnxruntime().get_available_providers()
    for name, _ in provider_list:
        if name not in available:
            raise ConfigError(
                f"model {config.name!r}: this onnxruntime has no {name}, only"
                f" {', '.join(available)}; install a build that has it, or use KIND_CPU"
            )
    return [*provider_list, "CPUExecutionProvider"]


def _whole(config: TritonConfig, name: str, default: int) -> int:
    setting = parameter_whole(config, name)
    return default if setting is None else setting


def _session(path: str, options: Any, provider_list: list[Any], model: str) -> Any:
    try:
        return _onnxruntime().InferenceSession(path, options, providers=provider_list)
    except Exception as error:  # its errors have no base class of their own
        raise ConfigError(
            f"model {model!r}: {os.path.basename(path)} cannot be loaded: {error}"
        ) from error


def _texts(array: Array) -> Array:
    if array.dtype != np.object_:
        return array
    try:
        texts = [e.decode() if isinstance(e, bytes) else e for e in array.ravel().tolist()]
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"an element is not UTF-8 text: {error}") from None
    decoded = np.empty(len(texts), np.object_)
    decoded[:] = texts
    return cast(Array, decoded.reshape(array.shape))


def _onnxruntime(model: str = "") -> Any:
    onnxruntime = library("onnxruntime", model, "'wherry[onnx]'")
    onnxruntime.disable_telemetry_events()
    return onnxruntime
