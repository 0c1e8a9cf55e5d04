"""Does a configuration make sense, and which parts of it have no effect here?

Pure: what needs the model's files or its neighbours is found elsewhere.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from wherry.triton.repository.ensemble_graph import graph_problems
from wherry.triton.repository.normalise import is_decoupled, is_ensemble
from wherry.triton.repository.schema import Path, Problem
from wherry.triton.repository.triton_config import (
    TritonConfig,
    TritonDynamicBatching,
    TritonInput,
    TritonInstanceGroup,
    TritonOutput,
    TritonSequenceBatching,
    TritonSequenceBatchingControl,
    TritonSequenceBatchingControlInput,
    TritonSequenceBatchingState,
    TritonWarmup,
)


def problems_of(config: TritonConfig, *, completed: bool = False) -> Iterator[Problem]:
    """Values that contradict each other or mean nothing. What a model's own file may complete later
    is not a problem, unless it was `completed`."""
    if config.max_batch_size < 0:
        yield Problem(("max_batch_size",), "must not be negative")
    batched = config.max_batch_size > 0
    of_framework = not _FRAMEWORKS.isdisjoint((config.backend, config.platform))
    scalars = not batched and of_framework
    inputs: Sequence[TritonInput | TritonOutput] = config.input
    outputs: Sequence[TritonInput | TritonOutput] = config.output
    for kind, tensors in (("input", inputs), ("output", outputs)):
        yield from _twice((kind,), [tensor.name for tensor in tensors], kind)
        for index, tensor in enumerate(tensors):
            if completed or not _has_code(config):
                yield from _gaps((kind, index), tensor, scalars)
            yield from _tensor((kind, index), tensor, batched, scalars)
    for index, one in enumerate(config.input):
        if one.allow_ragged_batch and (of_framework or not batched):
            where: Path = ("input", index, "allow_ragged_batch")
            yield Problem(where, "it needs a model.py, and max_batch_size > 0")
    yield from _versions(config)
    for index, group in enumerate(config.instance_group):
        yield from _group(("instance_group", index), group)
    if config.dynamic_batching is not None:
        yield from _dynamic(config.dynamic_batching, config.max_batch_size)
    if config.sequence_batching is not None:
        yield from _sequence(config.sequence_batching, config.max_batch_size)
    for index, sample in enumerate(config.model_warmup):
        yield from _warmup(("model_warmup", index), sample, config)
    yield from _file(("default_model_filename",), config.default_model_filename)
    yield from _agents(config)
    for name in ("batch_input", "batch_output"):
        if getattr(config, name):
            yield Problem((name,), "it is not here: a model.py gets each request by itself")
    yield from _ensemble(config)
    if is_decoupled(config) and config.response_cache is not None and config.response_cache.enable:
        yield Problem(("response_cache",), "a decoupled model's responses cannot be cached")


def without_effect(config: TritonConfig) -> Iterator[tuple[str, str]]:
    """Fields that are accepted and change nothing, each with the reason."""
    for name, why in _WITHOUT_EFFECT.items():
        if getattr(config, name):
            yield name, why
    for name, why in _GROUP_WITHOUT_EFFECT.items():
        if any(getattr(group, name) for group in config.instance_group):
            yield f"instance_group.{name}", why
    if config.optimization is not None:
        for name, why in _OPTIMIZATION_WITHOUT_EFFECT.items():
            if getattr(config.optimization, name) not in (None, 0, False, "PRIORITY_DEFAULT"):
                yield f"optimization.{name}", why


_WITHOUT_EFFECT: Final = {
    "runtime": "backends are Python here: there is no library to choose",
    "cc_model_filenames": "one file serves every compute capability",
    "model_metrics": "histograms have the buckets of all models",
    "model_repository_agents": "there are no repository agents",
    "model_operations": "backends here load no operation libraries; import them in a model.py",
}
_GROUP_WITHOUT_EFFECT: Final = {
    "secondary_devices": "there are no secondary devices",
    "profile": "profiles are TensorRT's",
    "passive": "a passive group is not loaded",
    "host_policy": "instances are not bound to host policies",
}
#: Backends and platforms of whole tensors, which may have no dimensions.
_FRAMEWORKS: Final = {
    "onnxruntime", "onnxruntime_onnx", "pytorch", "pytorch_libtorch", "torch_aoti", "openvino",
}  # fmt: skip
_OPTIMIZATION_WITHOUT_EFFECT: Final = {
    "priority": "models share the device without priorities",
    "cuda": "CUDA graphs and streams are the model's own business",
    "gather_kernel_buffer_threshold": "inputs are gathered on the CPU",
    "eager_batching": "batches are gathered while the instance waits",
}


def _has_code(config: TritonConfig) -> bool:
    """Whether the model may have an auto_complete_config(), which fills gaps of its tensors."""
    return config.backend in ("", "python") and not config.platform and not is_ensemble(config)


def _gaps(path: Path, tensor: TritonInput | TritonOutput, scalars: bool) -> Iterator[Problem]:
    """What a tensor leaves out. `scalars`: the model's backend takes tensors without dimensions."""
    if tensor.data_type == "TYPE_INVALID":
        yield Problem((*path, "data_type"), "it needs a data_type")
    if not tensor.dims and not (scalars and tensor.reshape is None):
        yield Problem(
            (*path, "dims"),
            "it needs dims, without the batch dimension: [ 1 ] or more (of one number: [ 1 ] and"
            " reshape { shape: [ ] })",
        )


def _tensor(
    path: Path, tensor: TritonInput | TritonOutput, batched: bool, scalars: bool
) -> Iterator[Problem]:
    if not tensor.name:
        yield Problem(path, "it needs a name")
    yield from _dims((*path, "dims"), tensor.dims)
    if tensor.reshape is not None:
        shape = tensor.reshape.shape
        yield from _dims((*path, "reshape", "shape"), shape)
        if not shape and not batched and not scalars:
            yield Problem((*path, "reshape"), "an empty shape needs max_batch_size > 0")
        elif _size(shape) != _size(tensor.dims) or shape.count(-1) != tensor.dims.count(-1):
            yield Problem(
                (*path, "reshape"), f"{shape} does not hold the elements of dims {tensor.dims}"
            )
    if isinstance(tensor, TritonOutput):
        yield from _file((*path, "label_filename"), tensor.label_filename)


def _file(path: Path, name: str | None) -> Iterator[Problem]:
    """Refuse a path out of the model's folder: a load request must not read other files."""
    if name and (name.startswith("/") or ".." in name.split("/")):
        yield Problem(path, f"{name!r} must be a file of the model's folder")


def _dims(path: Path, dims: Sequence[int]) -> Iterator[Problem]:
    for index, size in enumerate(dims):
        if size == 0 or size < -1:
            yield Problem((*path, index), f"{size} must be at least 1, or -1 for any size")


def _size(dims: Iterable[int]) -> int:
    return math.prod(size for size in dims if size != -1)


def _versions(config: TritonConfig) -> Iterator[Problem]:
    policy = config.version_policy
    if policy is None:
        return
    if policy.latest is not None and policy.latest.num_versions < 1:
        yield Problem(("version_policy", "latest", "num_versions"), "must be at least 1")
    if policy.specific is not None:
        path: Path = ("version_policy", "specific", "versions")
        if not policy.specific.versions:
            yield Problem(path, "it names no version")
        for index, version in enumerate(policy.specific.versions):
            if version < 1:
                yield Problem((*path, index), f"{version} is not a version: they begin at 1")


def _group(path: Path, group: TritonInstanceGroup) -> Iterator[Problem]:
    if group.count < 0:
        yield Problem((*path, "count"), f"{group.count} must not be negative")
    if group.count > 4096:
        yield Problem((*path, "count"), f"{group.count} instances are too many")
    if group.gpus and group.kind in ("KIND_CPU", "KIND_MODEL"):
        yield Problem((*path, "gpus"), f"{group.kind} has no gpus")
    if any(gpu < 0 for gpu in group.gpus):
        yield Problem((*path, "gpus"), "must not be negative")
    yield from _twice((*path, "gpus"), group.gpus, "GPU")


def _dynamic(batching: TritonDynamicBatching, max_batch_size: int) -> Iterator[Problem]:
    path: Path = ("dynamic_batching",)
    yield from _preferred(path, batching.preferred_batch_size, max_batch_size)
    levels = batching.priority_levels
    if levels and not 1 <= batching.default_priority_level <= levels:
        yield Problem(
            (*path, "default_priority_level"),
            f"must be set, from 1 to priority_levels ({levels})",
        )
    for level in batching.priority_queue_policy if levels else ():
        if not 1 <= level <= levels:
            yield Problem(
                (*path, "priority_queue_policy", level),
                f"priority level {level} does not exist; priority_levels is {levels}",
            )


def _preferred(path: Path, sizes: Sequence[int], max_batch_size: int) -> Iterator[Problem]:
    for index, size in enumerate(sizes):
        where: Path = (*path, "preferred_batch_size", index)
        if size < 1:
            yield Problem(where, f"{size} must be at least 1")
        elif max_batch_size and size > max_batch_size:
            yield Problem(where, f"{size} is more than max_batch_size ({max_batch_size})")


def _sequence(batching: TritonSequenceBatching, max_batch_size: int) -> Iterator[Problem]:
    path: Path = ("sequence_batching",)
    if batching.oldest is not None:
        sizes = batching.oldest.preferred_batch_size
        yield from _preferred((*path, "oldest"), sizes, max_batch_size)
        if batching.oldest.max_candidate_sequences < 0:
            yield Problem((*path, "oldest", "max_candidate_sequences"), "must not be negative")
    direct = batching.direct
    if direct is not None and not 0 <= direct.minimum_slot_utilization <= 1:
        yield Problem((*path, "direct", "minimum_slot_utilization"), "must lie between 0 and 1")
    yield from _controls((*path, "control_input"), batching.control_input)
    yield from _states((*path, "state"), batching.state)


def _controls(
    path: Path, inputs: Sequence[TritonSequenceBatchingControlInput]
) -> Iterator[Problem]:
    yield from _twice(path, [control_tensor.name for control_tensor in inputs], "control input")
    kinds = Counter(control.kind for control_tensor in inputs for control in control_tensor.control)
    for index, control_tensor in enumerate(inputs):
        if not control_tensor.name:
            yield Problem((*path, index), "it needs a name")
        for number, control in enumerate(control_tensor.control):
            yield from _control((*path, index, "control", number), control)
    for kind, count in kinds.items():
        if count > 1:
            yield Problem(path, f"{kind} is there {count} times")


def _control(path: Path, control: TritonSequenceBatchingControl) -> Iterator[Problem]:
    values = (control.int32_false_true, control.fp32_false_true, control.bool_false_true)
    pairs = [pair for pair in values if pair]
    if control.kind == "CONTROL_SEQUENCE_CORRID":
        if pairs:
            yield Problem(path, "the correlation id has no values for false and true")
        if control.data_type == "TYPE_INVALID":
            yield Problem(path, "the correlation id needs a data_type")
    elif len(pairs) != 1 or len(pairs[0]) != 2:
        yield Problem(
            path,
            "it needs two values, for false and true, in one of int32_false_true,"
            " fp32_false_true and bool_false_true",
        )


def _states(path: Path, states: Sequence[TritonSequenceBatchingState]) -> Iterator[Problem]:
    yield from _twice(path, [state.input_name for state in states], "input_name")
    yield from _twice(path, [state.output_name for state in states], "output_name")
    for index, state in enumerate(states):
        if not state.input_name or not state.output_name:
            yield Problem((*path, index), "it needs an input_name and an output_name")
        yield from _dims((*path, index, "dims"), state.dims)
        for number, initial in enumerate(state.initial_state):
            where = (*path, index, "initial_state", number, "data_file")
            yield from _file(where, initial.data_file)


def _warmup(path: Path, sample: TritonWarmup, config: TritonConfig) -> Iterator[Problem]:
    most = max(1, config.max_batch_size)
    if sample.batch_size > most and (config.max_batch_size or config.input):
        yield Problem((*path, "batch_size"), f"{sample.batch_size} is more than {most}")
    names = [tensor.name for tensor in config.input]
    added: set[str] = set()
    if (batching := config.sequence_batching) is not None:  # its controls and states are inputs
        added = {control.name for control in batching.control_input}
        added |= {state.input_name for state in batching.state}
    for name, control_tensor in sample.inputs.items():
        where: Path = (*path, "inputs", name)
        if names and name not in names and name not in added:
            yield Problem(where, f"the model has no input {name!r}; its inputs are {names}")
        if control_tensor.data_type == "TYPE_INVALID":
            yield Problem((*where, "data_type"), "it needs a data_type")
        for index, size in enumerate(control_tensor.dims):
            if size < 1:
                yield Problem((*where, "dims", index), f"{size} must be at least 1")
        sources = (
            control_tensor.zero_data,
            control_tensor.random_data,
            control_tensor.input_data_file,
        )
        yield from _file((*where, "input_data_file"), control_tensor.input_data_file)
        if all(source is None for source in sources):
            yield Problem(where, "it needs one of zero_data, random_data and input_data_file")


def _agents(config: TritonConfig) -> Iterator[Problem]:
    agents = config.model_repository_agents
    for index, agent in enumerate(agents.agents if agents is not None else ()):
        if agent.name == "checksum":  # ignoring it would serve what it is to refuse
            path: Path = ("model_repository_agents", "agents", index)
            yield Problem(path, "files are not checked here: do that before the server starts")


def _ensemble(config: TritonConfig) -> Iterator[Problem]:
    if not is_ensemble(config):
        return
    path: Path = ("ensemble_scheduling",)
    if config.platform not in ("", "ensemble") or config.backend not in ("", "ensemble"):
        yield Problem(path, "an ensemble has the platform 'ensemble' and no backend")
    for text in graph_problems(config):
        yield Problem(path, text)


def _twice(path: Path, names: Sequence[Any], what: str) -> Iterator[Problem]:
    seen: set[Any] = set()
    for index, name in enumerate(names):
        if name in seen and name != "":
            yield Problem((*path, index), f"{what} {name!r} is there already")
        seen.add(name)
