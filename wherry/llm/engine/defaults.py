"""Which sampling parameters does a checkpoint's author recommend?

Those that vLLM takes from generation_config.json. Others there (beams, caches, tokens by other
names) concern how transformers generates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from wherry.core.api import ConfigError, InvalidRequest
from wherry.llm.engine.sampling import Sampling

#: Names in generation_config.json, and ours.
NAMES: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}
WHOLE: Final = ("top_k", "max_tokens")


def defaults_of(generation_config: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters in the content of a generation_config.json. ConfigError names one whose value
    is not valid."""
    found: dict[str, Any] = {}
    for name, ours in NAMES.items():
        value = generation_config.get(name)
        if value is None:
            continue
        kinds = (int,) if ours in WHOLE else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise ConfigError(f"generation_config.json: {name} must be a number: {value!r:.80}")
        found[ours] = value
    if found.get("top_k") == -1:
        del found["top_k"]
    try:
        Sampling(**found).checked("generation_config.json", vocabulary=1)
    except InvalidRequest as error:
        raise ConfigError(str(error)) from None
    return found
