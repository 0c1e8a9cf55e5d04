"""What kind of model does a configuration describe?"""

from __future__ import annotations

from typing import Final

from wherry.triton.repository.triton_config import TritonConfig

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
