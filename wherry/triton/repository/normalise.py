"""What kind of model does a configuration describe, which inputs and outputs does it have that its
callers do not see, and which fields does Triton fill in before it shows it?
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from wherry.triton.repository.triton_config import (
    TritonConfig,
    TritonDataType,
    TritonInput,
    TritonInstanceGroup,
    TritonOptimizationPolicy,
    TritonOptimizationPolicyPinnedMemoryBuffer,
    TritonOutput,
    TritonSequenceBatching,
    TritonSequenceBatchingControl,
    TritonVersionPolicy,
    TritonVersionPolicyLatest,
)

#: The platform of models that name a backend, or have its file, and no platform.
_PLATFORMS: Final = {"onnxruntime": "onnxruntime_onnx", "pytorch": "pytorch_libtorch"}


def is_decoupled(config: TritonConfig) -> bool:
    """Whether a request may have any number of responses."""
    policy = config.model_transaction_policy
    return policy is not None and policy.decoupled


def is_ensemble(config: TritonConfig) -> bool:
    return config.platform == "ensemble" or config.ensemble_scheduling is not None


def platform_of(config: TritonConfig) -> str:
    """The platform, as Triton fills it in; "" for backends that have none."""
    return config.platform or _PLATFORMS.get(config.backend, "")


def default_count(backend: str, kind: str) -> int:
    """The number of instances of a group without a count, as in Triton."""
    return 2 if backend == "onnxruntime" and kind == "KIND_CPU" else 1


def inside(triton: TritonConfig) -> TritonConfig:
    """The configuration with the inputs that the server fills in (`control_input`, `state`) and
    the outputs that it keeps for the next step of a sequence (`state`)."""
    sequence = triton.sequence_batching
    if sequence is None:
        return triton
    here = {i.name for i in triton.input} | {o.name for o in triton.output}
    controls = [
        TritonInput(name=one.name, data_type=_type_of(one.control[0]), dims=[1])
        for one in sequence.control_input
        if one.control and one.name not in here
    ]
    states = [
        TritonInput(name=state.input_name, data_type=state.data_type, dims=state.dims)
        for state in sequence.state
        if state.input_name not in here
    ]
    kept = [
        TritonOutput(name=state.output_name, data_type=state.data_type, dims=state.dims)
        for state in sequence.state
        if state.output_name not in here
    ]
    return msgspec.structs.replace(
        triton, input=[*triton.input, *controls, *states], output=[*triton.output, *kept]
    )


def _type_of(control: TritonSequenceBatchingControl) -> TritonDataType:
    if control.kind == "CONTROL_SEQUENCE_CORRID":
        return control.data_type
    if control.int32_false_true:
        return "TYPE_INT32"
    return "TYPE_FP32" if control.fp32_false_true else "TYPE_BOOL"


#: Triton's own default for max_sequence_idle_microseconds.
IDLE_MICROSECONDS = 1_000_000

#: default_model_filename by backend.
FILES = {"python": "model.py", "onnxruntime": "model.onnx", "pytorch": "model.pt"}


def normalised(config: TritonConfig, gpus: Sequence[int] = ()) -> TritonConfig:
    """A copy with the fields that Triton fills in, to be shown. Not to be run: there a field that
    is not set leaves the choice to the batcher."""
    config = replace(
        config,
        version_policy=config.version_policy
        or TritonVersionPolicy(latest=TritonVersionPolicyLatest(num_versions=1)),
    )
    full = [config.max_batch_size] if config.max_batch_size > 0 else []
    if config.dynamic_batching is not None:
        sizes = config.dynamic_batching.preferred_batch_size or full
        config.dynamic_batching = replace(config.dynamic_batching, preferred_batch_size=sizes)
    if config.sequence_batching is not None:
        config.sequence_batching = _sequence(config.sequence_batching, full)
    if is_ensemble(config):
        return config
    optimization = config.optimization or TritonOptimizationPolicy()
    config.optimization = replace(
        optimization,
        input_pinned_memory=optimization.input_pinned_memory
        or TritonOptimizationPolicyPinnedMemoryBuffer(enable=True),
        output_pinned_memory=optimization.output_pinned_memory
        or TritonOptimizationPolicyPinnedMemoryBuffer(enable=True),
    )
    config.default_model_filename = config.default_model_filename or FILES.get(config.backend, "")
    groups = config.instance_group or [TritonInstanceGroup(name=config.name)]
    config.instance_group = [
        _group(group, f"{config.name}_{index}", gpus, config.backend)
        for index, group in enumerate(groups)
    ]
    config.platform = platform_of(config)
    return config


def _sequence(batching: TritonSequenceBatching, full: list[int]) -> TritonSequenceBatching:
    idle = batching.max_sequence_idle_microseconds or IDLE_MICROSECONDS
    oldest = batching.oldest
    if oldest is not None:
        oldest = replace(oldest, preferred_batch_size=oldest.preferred_batch_size or full)
    return replace(batching, max_sequence_idle_microseconds=idle, oldest=oldest)


def _group(
    group: TritonInstanceGroup, name: str, gpus: Sequence[int], backend: str
) -> TritonInstanceGroup:
    kind = group.kind
    if kind == "KIND_AUTO":
        kind = "KIND_GPU" if group.gpus or gpus else "KIND_CPU"
    return replace(
        group,
        name=group.name or name,
        kind=kind,
        count=group.count or default_count(backend, kind),
        gpus=group.gpus or (list(gpus) if kind == "KIND_GPU" else []),
    )
