"""How does an ONNX file of a repository run?

In threads that share one session for each device: ONNX Runtime releases the GIL while it computes
and is thread-safe, so one copy of the weights serves all instances. An operator uses one thread
unless configured otherwise: instances fill the cores, at about half the CPU time for each row.

Rows of different shapes (`allow_ragged_batch`) are concatenated in one dimension. `batch_input`:
generated tensors that say where each row ends. `batch_output`: a flat output, split like the rows
of an input. A row counts as one item, whether it came alone or in a larger request.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

import numpy as np

from wherry.core.api import (
    Array,
    BadModelOutput,
    Column,
    Columns,
    ConfigError,
    Device,
    Form,
    InvalidRequest,
    Signature,
    cpu_instead,
)
from wherry.triton.backends import shared
from wherry.triton.backends.repository_model import RepositoryModel
from wherry.triton.backends.shared import (
    FileTensor,
    Shared,
    from_model,
    library,
    parameter_whole,
    to_model,
)
from wherry.triton.repository.mapping import datatype_of
from wherry.triton.repository.normalise import inside
from wherry.triton.repository.triton_config import (
    TritonConfig,
    TritonDataType,
    TritonInput,
    TritonOutput,
)

Shapes = Sequence[tuple[int, ...]]


def ragged_inputs(config: TritonConfig) -> set[str]:
    """The names of inputs whose rows arrive as a list of arrays."""
    return {tensor.name for tensor in config.input if tensor.allow_ragged_batch}


def made_inputs(config: TritonConfig) -> set[str]:
    """The names of the inputs that the server generates from others."""
    return {name for one in config.batch_input for name in one.target_name}


def scattered_outputs(config: TritonConfig) -> dict[str, str]:
    """The outputs that are split like an input's rows, with that input."""
    return {name: one.source_input[0] for one in config.batch_output for name in one.target_name}


def check_ragged(config: TritonConfig) -> None:
    """Raise ConfigError if a source is not a ragged input of the model."""
    ragged = ragged_inputs(config)
    sources = [(f"batch_input[{i}]", one.source_input) for i, one in enumerate(config.batch_input)]
    sources += [
        (f"batch_output[{i}]", one.source_input) for i, one in enumerate(config.batch_output)
    ]
    for place, names in sources:
        if len(names) != 1 or names[0] not in ragged:
            raise ConfigError(
                f"model {config.name!r}: {place}.source_input must be one input that has"
                f" allow_ragged_batch, not {names}"
            )


def joined(column: Column) -> Array:
    rows = cast(Sequence[Array], column)
    return np.concatenate([row.ravel() for row in rows])


def shapes_of(columns: Columns, names: set[str]) -> dict[str, Shapes]:
    return {
        name: [row.shape for row in cast(Sequence[Array], columns[name])]
        for name in names
        if name in columns
    }


def batch_inputs(config: TritonConfig, shapes: Mapping[str, Shapes]) -> Iterator[tuple[str, Array]]:
    """The generated input tensors by name."""
    for one in config.batch_input:
        source = shapes.get(one.source_input[0])
        if source is None:
            continue  # an optional input that was not sent
        values = _MADE[one.kind](source)
        array = np.asarray(values, datatype_of(one.data_type).dtype)
        for name in one.target_name:
            yield name, array


def scattered(result: Array, shapes: Shapes, output: str, model: str) -> list[Array]:
    """Split a flat output into rows of these shapes."""
    ends = list(itertools.accumulate(math.prod(shape) for shape in shapes))
    flat = result.ravel()
    if len(flat) != ends[-1]:
        raise BadModelOutput(
            f"model {model!r}: output {output!r} has {len(flat)} elements; the rows of the input"
            f" that it is cut like have {ends[-1]}"
        )
    pieces = np.split(flat, ends[:-1])
    return [piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True)]


def _counts(shapes: Shapes) -> list[int]:
    return [math.prod(shape) for shape in shapes]


_MADE: Final[dict[str, Callable[[Shapes], object]]] = {
    "BATCH_ELEMENT_COUNT": _counts,
    "BATCH_ACCUMULATED_ELEMENT_COUNT": lambda s: list(itertools.accumulate(_counts(s))),
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO": lambda s: [0, *itertools.accumulate(_counts(s))],
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE": lambda s: np.zeros(max(_counts(s))),
    "BATCH_ITEM_SHAPE": list,
    "BATCH_ITEM_SHAPE_FLATTEN": lambda s: [size for shape in s for size in shape],
}


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
        self._ragged = ragged_inputs(self.triton)

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

    def signature(self, name: str = "") -> Signature:
        """The signature. Rows of an output that is split like an input have different shapes."""
        signature = super().signature(name)
        cut = scattered_outputs(self.triton)
        outputs = [
            replace(spec, form=Form.ARRAYS) if spec.name in cut else spec
            for spec in signature.outputs
        ]
        return replace(signature, outputs=tuple(outputs))

    def execute(self, **columns: Column) -> Columns:
        batched = self.triton.max_batch_size > 0
        shapes = shapes_of(columns, self._ragged)
        feeds = {
            tensor.name: joined(columns[tensor.name])
            if tensor.name in shapes
            else _texts(to_model(columns[tensor.name], tensor, batched))
            for tensor in self.inside.input
            if tensor.name in columns
        }
        feeds.update(batch_inputs(self.triton, shapes))
        names = [tensor.name for tensor in self.inside.output]
        try:
            results = self._session.value.run(names, feeds)
        except Exception as error:  # its errors have no base class of their own
            if type(error).__name__ != "InvalidArgument":
                raise
            # The inputs' shapes contradict each other, which is the caller's mistake.
            raise InvalidRequest(f"model {self.triton.name!r}: {error}") from None
        model, cut = self.triton.name, scattered_outputs(self.triton)
        return {
            tensor.name: scattered(result, shapes[cut[tensor.name]], tensor.name, model)
            if tensor.name in cut
            else from_model(result, tensor, batched, model)
            for tensor, result in zip(self.inside.output, results, strict=True)
        }

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
    """`config` completed by ONNX Runtime's descriptions of the file's inputs and outputs."""
    check_ragged(config)
    made = made_inputs(config)
    inputs = _of_callers(inputs, inside(config).input, config.input)
    outputs = _of_callers(outputs, inside(config).output, config.output)
    return shared.complete(
        config,
        [_tensor(config.name, tensor) for tensor in inputs if tensor.name not in made],
        [_tensor(config.name, tensor) for tensor in outputs],
        flat=ragged_inputs(config) | set(scattered_outputs(config)),
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
    """The path of a version's file, or of the folder with a file and its external weights."""
    path = os.path.join(folder, version, config.default_model_filename or FILE)
    if os.path.isdir(path):
        path = os.path.join(path, FILE)
    if not os.path.isfile(path):
        raise ConfigError(
            f"model {config.name!r}: version {version} has no {os.path.basename(path)}"
        )
    return path


def session_options(config: TritonConfig) -> Any:
    """The session's options from the parameters that Triton's backend knows."""
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
    """The array with its strings as str, which ONNX Runtime expects."""
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
