"""Which fields does Triton fill in before it shows a configuration?"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from wherry.triton.repository.kind import default_count, is_ensemble, platform_of
from wherry.triton.repository.triton_config import (
    TritonConfig,
    TritonInstanceGroup,
    TritonOptimizationPolicy,
    TritonOptimizationPolicyPinnedMemoryBuffer,
    TritonSequenceBatching,
    TritonVersionPolicy,
    TritonVersionPolicyLatest,
)

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
