"""What kind of model does a configuration describe, and which inputs and outputs does it have that
its callers do not see?
"""

from __future__ import annotations

from typing import Final

import msgspec

from wherry.triton.repository.triton_config import (
    TritonConfig,
    TritonDataType,
    TritonInput,
    TritonOutput,
    TritonSequenceBatchingControl,
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
    """The instances of a group that says no number, as in Triton."""
    return 2 if backend == "onnxruntime" and kind == "KIND_CPU" else 1


def inside(triton: TritonConfig) -> TritonConfig:
    """The configuration with the inputs that the server fills in (`control_input`, `state`) and
    the outputs that it keeps for the next step of a sequence (`state`)."""
    sequence = triton.sequence_batching
    if sequence is None:
        return triton
    here = {i.name for i in triton.input} | {o.name for o in triton.output}
    controls = [
        TritonInput(name=given.name, data_type=_type_of(given.control[0]), dims=[1])
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


def _type_of(control: TritonSequenceBatchingControl) -> TritonDataType:
    if control.kind == "CONTROL_SEQUENCE_CORRID":
        return control.data_type
    if control.int32_false_true:
        return "TYPE_INT32"
    return "TYPE_FP32" if control.fp32_false_true else "TYPE_BOOL"
