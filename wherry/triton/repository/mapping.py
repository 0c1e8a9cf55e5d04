"""What do the fields of a Triton configuration mean as settings of a model here, and which of them
describe other models to clients of Triton?

`..._settings` read Triton's fields, `triton_...` write them. Microseconds become seconds here, and
seconds microseconds.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from wherry.core.api import (
    BYTES,
    DATATYPES,
    ConfigError,
    Datatype,
    Form,
    InstanceGroup,
    ModelConfig,
    QueuePolicy,
    SequenceBatching,
    SequenceControl,
    SequenceState,
    Signature,
    TensorSpec,
)
from wherry.triton.repository.normalise import default_count, is_decoupled
from wherry.triton.repository.triton_config import (
    TritonConfig,
    TritonDataType,
    TritonDynamicBatching,
    TritonInput,
    TritonInstanceGroup,
    TritonInstanceGroupKind,
    TritonOptimizationPolicy,
    TritonOptimizationPolicyPinnedMemoryBuffer,
    TritonOutput,
    TritonQueuePolicy,
    TritonResponseCache,
    TritonSequenceBatching,
    TritonSequenceBatchingControl,
    TritonSequenceBatchingControlKind,
    TritonSequenceBatchingState,
    TritonSequenceBatchingStrategyDirect,
    TritonSequenceBatchingStrategyOldest,
    TritonTensorReshape,
    TritonTransactionPolicy,
    TritonVersionPolicy,
    TritonVersionPolicyLatest,
)

#: A parameter of wherry's own: whether a request may run twice.
RUN_AGAIN: Final = "RUN_AGAIN"

_DEVICES: Final[Mapping[str, TritonInstanceGroupKind]] = {
    "auto": "KIND_AUTO",
    "cpu": "KIND_CPU",
    "cuda": "KIND_GPU",
}
_CONTROLS: Final[Mapping[TritonSequenceBatchingControlKind, str]] = {
    "CONTROL_SEQUENCE_START": "start",
    "CONTROL_SEQUENCE_READY": "ready",
    "CONTROL_SEQUENCE_END": "end",
    "CONTROL_SEQUENCE_CORRID": "id",
}


def settings(triton: TritonConfig, folder: str) -> dict[str, Any]:
    """Read Triton's fields as settings of a ModelConfig. Reads the files of initial states from the
    model's `folder`.

    Fields that are not set leave the setting's default, which is a batcher that tunes itself. As in
    Triton no queue is bounded and there are no priorities unless fields set them; `max_queue_wait`
    alone keeps its default (decision 17).
    """
    found: dict[str, Any] = {
        "max_batch_size": triton.max_batch_size,
        "max_queue_size": None,
        **_instance_settings(triton.instance_group, triton.backend),
    }
    if (again := triton.parameters.get(RUN_AGAIN)) is not None:
        if again.string_value not in ("true", "false"):
            raise ConfigError(f"parameter {RUN_AGAIN}: must be 'true' or 'false'")
        found["run_again"] = again.string_value == "true"
    if triton.response_cache is not None:
        found["response_cache"] = triton.response_cache.enable
    if triton.sequence_batching is not None:
        returned = {output.name for output in triton.output}
        sequence = _sequence_settings(triton.sequence_batching, returned, folder)
        return {**found, "priority_levels": 0, **sequence}
    if triton.dynamic_batching is not None:
        return {**found, **_dynamic_settings(triton.dynamic_batching)}
    # A request is a batch of its own, as in Triton.
    return {**found, "priority_levels": 0, "share_batches": False}


def triton_config(config: ModelConfig, signature: Signature) -> TritonConfig:
    """The Triton configuration of a model that has none, for clients: its tensors, its instances,
    and how its requests are batched."""
    pinned = TritonOptimizationPolicyPinnedMemoryBuffer(enable=True)
    triton = TritonConfig(
        name=config.name,
        backend="python",
        version_policy=TritonVersionPolicy(latest=TritonVersionPolicyLatest(num_versions=1)),
        max_batch_size=config.max_batch_size,
        input=[_triton_input(spec) for spec in signature.inputs],
        output=[_triton_output(spec) for spec in signature.outputs],
        optimization=TritonOptimizationPolicy(
            input_pinned_memory=pinned, output_pinned_memory=pinned
        ),
        instance_group=[
            _triton_instances(config.name, number, group)
            for number, group in enumerate(config.instances)
        ],
        model_transaction_policy=TritonTransactionPolicy(decoupled=signature.streams),
    )
    if config.response_cache:
        triton.response_cache = TritonResponseCache(enable=True)
    delay = _microseconds(config.max_queue_delay)
    sizes = list(config.preferred_batch_sizes)
    if (sequence := config.sequence) is not None:
        triton.sequence_batching = TritonSequenceBatching(
            max_sequence_idle_microseconds=_microseconds(sequence.max_sequence_idle),
            iterative_sequence=sequence.iterative,
        )
        if sequence.strategy == "direct":
            triton.sequence_batching.direct = TritonSequenceBatchingStrategyDirect(
                max_queue_delay_microseconds=delay,
                minimum_slot_utilization=sequence.minimum_slot_utilization,
            )
        else:
            triton.sequence_batching.oldest = TritonSequenceBatchingStrategyOldest(
                max_candidate_sequences=sequence.max_candidate_sequences or config.max_batch_size,
                preferred_batch_size=sizes,
                max_queue_delay_microseconds=delay,
                preserve_ordering=config.preserve_ordering,
            )
    elif config.max_batch_size > 1 and config.share_batches:
        triton.dynamic_batching = TritonDynamicBatching(
            preferred_batch_size=sizes,
            max_queue_delay_microseconds=delay,
            preserve_ordering=config.preserve_ordering,
            priority_levels=config.priority_levels,
            default_priority_level=config.default_priority if config.priority_levels else 0,
        )
    return triton


# Tensors


def signature(triton: TritonConfig) -> Signature:
    """The signature that clients see: `dims`, not `reshape`, which is between server and model."""
    batched = triton.max_batch_size > 0
    return Signature(
        inputs=tuple(_input(tensor, batched) for tensor in triton.input),
        outputs=tuple(_spec(tensor) for tensor in triton.output),
        row_wise=False,
        streams=is_decoupled(triton),
        is_async=False,
        returns="named",
    )


def datatype_of(data_type: TritonDataType) -> Datatype:
    return DATATYPES[_datatype(data_type)]


def _spec(tensor: TritonInput | TritonOutput) -> TensorSpec:
    datatype = datatype_of(tensor.data_type)
    form = Form.BYTES if datatype is BYTES else Form.ARRAY
    return TensorSpec(tensor.name, datatype, tuple(tensor.dims), form)


def _input(tensor: TritonInput, batched: bool) -> TensorSpec:
    spec = _spec(tensor)
    ragged = batched and tensor.allow_ragged_batch and spec.form is Form.ARRAY
    return replace(spec, form=Form.ARRAYS if ragged else spec.form, optional=tensor.optional)


def _triton_input(spec: TensorSpec) -> TritonInput:
    dims, reshape = _triton_dims(spec)
    return TritonInput(
        name=spec.name,
        data_type=_triton_type(spec.datatype.name),
        dims=dims,
        reshape=reshape,
        allow_ragged_batch=spec.form is Form.ARRAYS,
        optional=spec.optional,
    )


def _triton_output(spec: TensorSpec) -> TritonOutput:
    dims, reshape = _triton_dims(spec)
    data_type = _triton_type(spec.datatype.name)
    return TritonOutput(name=spec.name, data_type=data_type, dims=dims, reshape=reshape)


def _triton_dims(spec: TensorSpec) -> tuple[list[int], TritonTensorReshape | None]:
    """dims and reshape. Triton has no tensor without dimensions: a row of shape () is [1], reshaped
    to []."""
    return (list(spec.shape), None) if spec.shape else ([1], TritonTensorReshape(shape=[]))


def _datatype(data_type: TritonDataType) -> str:
    name = data_type.removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name


def _triton_type(datatype: str) -> TritonDataType:
    return cast(TritonDataType, "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}")


# Instances


def _instance_settings(groups: Sequence[TritonInstanceGroup], backend: str) -> dict[str, Any]:
    """Settings of the groups: `count` instances on each device, and of each resource the largest
    count that a group requires."""
    instances = [one for group in groups for one in _groups(group, backend)]
    found: dict[str, Any] = {"instances": instances or 1}
    limiters = [group.rate_limiter for group in groups if group.rate_limiter is not None]
    needs: dict[str, int] = {}
    for limiter in limiters:
        for one in limiter.resources:
            needs[one.name] = max(needs.get(one.name, 0), one.count)
    if needs:
        found["resources"] = needs
        found["resource_priority"] = max(1, *(limiter.priority for limiter in limiters))
    return found


def _groups(group: TritonInstanceGroup, backend: str) -> list[InstanceGroup]:
    if group.passive:
        return []
    count = group.count if group.count > 0 else default_count(backend, group.kind)
    if group.gpus:
        return [InstanceGroup(count, f"cuda:{index}") for index in group.gpus]
    # KIND_MODEL is "cpu": the model's own code chooses its device.
    devices = [device for device, kind in _DEVICES.items() if kind == group.kind] or ["cpu"]
    return [InstanceGroup(count, device) for device in devices]


def _triton_instances(model: str, number: int, group: InstanceGroup) -> TritonInstanceGroup:
    device, _, index = group.device.partition(":")
    return TritonInstanceGroup(
        name=f"{model}_{number}",
        kind=_DEVICES[device],
        count=group.count,
        gpus=[int(index)] if index else [],
    )


# dynamic_batching


def _dynamic_settings(dynamic: TritonDynamicBatching) -> dict[str, Any]:
    policies = {0: dynamic.default_queue_policy}
    if dynamic.priority_levels:  # without levels Triton does not look at theirs
        policies |= dynamic.priority_queue_policy
    found: dict[str, Any] = {
        "priority_levels": dynamic.priority_levels,
        "preserve_ordering": dynamic.preserve_ordering,
        "queue_policies": tuple(
            _policy(level, policy) for level, policy in policies.items() if policy is not None
        ),
    }
    if dynamic.priority_levels:
        found["default_priority"] = dynamic.default_priority_level or dynamic.priority_levels
    if dynamic.max_queue_delay_microseconds or dynamic.preferred_batch_size:
        found["max_queue_delay"] = dynamic.max_queue_delay_microseconds / 1e6
        found["preferred_batch_sizes"] = tuple(sorted(set(dynamic.preferred_batch_size)))
        found["wait_when_mixed"] = False
    return found


def _policy(level: int, policy: TritonQueuePolicy) -> QueuePolicy:
    return QueuePolicy(
        level=level,
        timeout=policy.default_timeout_microseconds / 1e6 or None,
        timeout_action=policy.timeout_action.lower(),
        allow_timeout_override=policy.allow_timeout_override,
        max_queue_size=policy.max_queue_size or None,
        triton=True,
    )


# sequence_batching


def _sequence_settings(
    batching: TritonSequenceBatching, returned: set[str], folder: str
) -> dict[str, Any]:
    """Settings of a sequence batcher. `returned`: the names of the outputs that callers get."""
    found: dict[str, Any] = {}
    how: dict[str, Any] = {}
    if batching.oldest is not None:
        oldest = batching.oldest
        how = {"strategy": "oldest", "max_candidate_sequences": oldest.max_candidate_sequences}
        found["max_queue_delay"] = oldest.max_queue_delay_microseconds / 1e6
        found["preferred_batch_sizes"] = tuple(sorted(set(oldest.preferred_batch_size)))
        found["preserve_ordering"] = oldest.preserve_ordering
    elif batching.direct is not None:
        direct = batching.direct
        how = {"minimum_slot_utilization": direct.minimum_slot_utilization}
        found["max_queue_delay"] = direct.max_queue_delay_microseconds / 1e6
    if batching.max_sequence_idle_microseconds:
        how["max_sequence_idle"] = batching.max_sequence_idle_microseconds / 1e6
    found["sequence"] = SequenceBatching(
        iterative=batching.iterative_sequence,
        controls=tuple(
            _control(control_input.name, control)
            for control_input in batching.control_input
            for control in control_input.control
        ),
        states=tuple(_state(one, one.output_name in returned, folder) for one in batching.state),
        **how,
    )
    return found


def _control(name: str, control: TritonSequenceBatchingControl) -> SequenceControl:
    kind = _CONTROLS[control.kind]
    if kind == "id":
        return SequenceControl(kind, name, datatype=_datatype(control.data_type))
    choices = (
        ("INT32", control.int32_false_true),
        ("FP32", control.fp32_false_true),
        ("BOOL", control.bool_false_true),
    )
    for datatype, pair in choices:
        if len(pair) == 2:
            return SequenceControl(kind, name, float(pair[0]), float(pair[1]), datatype)
    raise ConfigError(
        f"sequence_batching: control {name!r} needs two values, for false and true, in one of"
        " int32_false_true, fp32_false_true and bool_false_true"
    )


def _state(state: TritonSequenceBatchingState, returned: bool, folder: str) -> SequenceState:
    dims, data = state.dims, None
    if state.initial_state:
        initial = state.initial_state[0]
        dims = initial.dims or dims
        if initial.data_file:
            data = _read(os.path.join(folder, "initial_state", initial.data_file))
    return SequenceState(
        state.input_name,
        state.output_name,
        _datatype(state.data_type),
        # As in Triton, a size that is open is 1 at the START.
        tuple(1 if size < 0 else size for size in dims),
        data,
        returned,
    )


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        name = os.path.basename(path)
        raise ConfigError(f"sequence_batching: initial_state/{name}: {error.strerror}") from None


def _microseconds(seconds: float | None) -> int:
    return round((seconds or 0) * 1e6)
