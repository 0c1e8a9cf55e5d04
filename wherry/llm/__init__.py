"""Generation with iteration-level batching: wherry's own engine for decoder models."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wherry.llm.engine.delta import Delta
    from wherry.llm.engine.engine import Engine
    from wherry.llm.engine.llm import LLM
    from wherry.llm.engine.sampling import Sampling

__all__ = ["LLM", "Delta", "Engine", "Sampling"]

_HOMES = {
    "LLM": "wherry.llm.engine.llm",
    "Delta": "wherry.llm.engine.delta",
    "Engine": "wherry.llm.engine.engine",
    "Sampling": "wherry.llm.engine.sampling",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'wherry.llm' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
