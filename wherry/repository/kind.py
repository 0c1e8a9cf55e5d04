"""What kind of model does a configuration describe?"""

from __future__ import annotations

from wherry.repository.triton_config import TritonConfig


def is_decoupled(config: TritonConfig) -> bool:
    """Whether a request may have any number of responses."""
    policy = config.model_transaction_policy
    return policy is not None and policy.decoupled


def is_ensemble(config: TritonConfig) -> bool:
    return config.platform == "ensemble" or config.ensemble_scheduling is not None
