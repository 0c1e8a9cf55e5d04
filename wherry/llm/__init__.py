"""Generation with iteration-level batching: wherry's own engine for decoder models."""

from typing import TYPE_CHECKING

from wherry.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from wherry.llm.engine.delta import Delta
    from wherry.llm.engine.engine import Engine
    from wherry.llm.engine.llm import LLM
    from wherry.llm.engine.sampling import Sampling
else:
    homes = {"LLM": "llm", "Delta": "delta", "Engine": "engine", "Sampling": "sampling"}
    __getattr__ = lazy_exports(__name__, {f"llm.engine.{home}": n for n, home in homes.items()})

__all__ = ["LLM", "Delta", "Engine", "Sampling"]
