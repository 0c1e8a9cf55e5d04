"""What do the scheduling blocks of a config.pbtxt mean as settings of a model of ours?

dynamic_batching, sequence_batching and response_cache; microseconds become seconds here. What a
block does not say is left to the defaults, and to the batcher that tunes itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from wherry.models.config import QueuePolicy, SequenceBatching, SequenceControl, SequenceState
from wherry.repository import triton_config
from wherry.repository.triton_config import TritonConfig, TritonDataType, TritonInput, TritonOutput
from wherry.values.errors import ConfigError

_KINDS: Final[Mapping[str, str]] = {
    "CONTROL_SEQUENCE_START": "start",
    "CONTROL_SEQUENCE_END": "end",
    "CONTROL_SEQUENCE_READY": "ready",
    "CONTROL_SEQUENCE_CORRID": "id",
}


def scheduling(triton: TritonConfig, folder: str) -> dict[str, Any]:
    """Settings of a ModelConfig. Files of initial states are read from the model's `folder`.

    Triton bounds no queue unless it is told to, and knows no priorities: neither does this, but
    for `max_queue_wait` (decision 17).
    """
    settings: dict[str, Any] = {"max_queue_size": None}
    if triton.response_cache is not None:
        settings["response_cache"] = triton.response_cache.enable
    if triton.sequence_batching is not None:
        return {**settings, "priority_levels": 0, **_sequence(triton, folder)}
    if triton.dynamic_batching is None:
        # A request is a batch of its own, as in Triton.
        return {**settings, "priority_levels": 0, "share_batches": False}
    return {**settings, **_dynamic(triton.dynamic_batching)}


def inside(triton: TritonConfig) -> TritonConfig:
    """The same as the model sees it: with the inputs that the server fills in and the outputs that
    it keeps for the next step of a sequence, which are none of its callers' business."""
    sequence = triton.sequence_batching
    if sequence is None:
        return triton
    here = {i.name for i in triton.input} | {o.name for o in triton.output}
    controls = [
        TritonInput(name=given.name, data_type=_control_type(given.control[0]), dims=[1])
        for given in sequence.control_input
        if given.control and given.name not in here
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


def _control_type(control: triton_config.TritonSequenceBatchingControl) -> TritonDataType:
    if control.kind == "CONTROL_SEQUENCE_CORRID":
        return control.data_type
    if control.int32_false_true:
        return "TYPE_INT32"
    return "TYPE_FP32" if control.fp32_false_true else "TYPE_BOOL"


def _dynamic(dynamic: triton_config.TritonDynamicBatching) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "priority_levels": dynamic.priority_levels,
        "preserve_ordering": dynamic.preserve_ordering,
        "queue_policies": _policies(dynamic),
    }
    if dynamic.priority_levels:
        settings["default_priority"] = dynamic.default_priority_level or dynamic.priority_levels
    if dynamic.max_queue_delay_microseconds or dynamic.preferred_batch_size:
        settings["max_queue_delay"] = dynamic.max_queue_delay_microseconds / 1e6
        settings["preferred_batch_sizes"] = tuple(sorted(set(dynamic.preferred_batch_size)))
        settings["wait_when_mixed"] = False
    return settings


def _policies(dynamic: triton_config.TritonDynamicBatching) -> tuple[QueuePolicy, ...]:
    given = {0: dynamic.default_queue_policy, **dynamic.priority_queue_policy}
    return tuple(_policy(level, policy) for level, policy in given.items() if policy is not None)


def _policy(level: int, policy: triton_config.TritonQueuePolicy) -> QueuePolicy:
    return QueuePolicy(
        level=level,
        timeout=policy.default_timeout_microseconds / 1e6 or None,
        timeout_action=policy.timeout_action.lower(),
        allow_timeout_override=policy.allow_timeout_override,
        max_queue_size=policy.max_queue_size or None,
        triton=True,
    )


def _sequence(triton: TritonConfig, folder: str) -> dict[str, Any]:
    batching = triton.sequence_batching
    assert batching is not None
    settings: dict[str, Any] = {}
    how: dict[str, Any] = {}
    if batching.oldest is not None:
        oldest = batching.oldest
        how = {
            "strategy": "oldest",
            "max_candidate_sequences": oldest.max_candidate_sequences,
        }
        settings["max_queue_delay"] = oldest.max_queue_delay_microseconds / 1e6
        settings["preferred_batch_sizes"] = tuple(sorted(set(oldest.preferred_batch_size)))
        settings["preserve_ordering"] = oldest.preserve_ordering
    elif batching.direct is not None:
        direct = batching.direct
        how = {"minimum_slot_utilization": direct.minimum_slot_utilization}
        settings["max_queue_delay"] = direct.max_queue_delay_microseconds / 1e6
    if batching.max_sequence_idle_microseconds:
        how["max_sequence_idle"] = batching.max_sequence_idle_microseconds / 1e6
    outputs = {output.name for output in triton.output}
    settings["sequence"] = SequenceBatching(
        iterative=batching.iterative_sequence,
        controls=tuple(
            _control(given.name, control)
            for given in batching.control_input
            for control in given.control
        ),
        states=tuple(
            _state(state, state.output_name in outputs, folder) for state in batching.state
        ),
        **how,
    )
    return settings


def _control(name: str, control: triton_config.TritonSequenceBatchingControl) -> SequenceControl:
    kind = _KINDS[control.kind]
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


def _state(
    state: triton_config.TritonSequenceBatchingState, returned: bool, folder: str
) -> SequenceState:
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
        # What is open at the START is as small as can be, as in Triton.
        tuple(1 if size < 0 else size for size in dims),
        data,
        returned,
    )


def _datatype(data_type: str) -> str:
    name = data_type.removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        name = os.path.basename(path)
        raise ConfigError(f"sequence_batching: initial_state/{name}: {error.strerror}") from None
