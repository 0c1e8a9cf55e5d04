"""Can no engine here run this config.json? Which part of a library's error may a client see?

What one engine does not know, another may; a number that is a text is wrong for all of them, and
libraries allocate an absurd size, or loop over it, before they check it. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

#: Models of 1,000 layers were trained for a paper; transformers makes a module of each.
MOST_LAYERS: Final = 4096
#: The largest vocabularies have 300,000 tokens, the widest layers 100,000 features.
MOST: Final = 1 << 24
AGAIN: Final = "download the checkpoint again, or correct the field"
#: The fields of configurations for the longest context, in tokens.
POSITIONS: Final = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len")
#: Fields that count layers, and others that are sizes, by all names that configurations use.
LAYERS: Final = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
SIZES: Final = (
    "hidden_size", "n_embd", "d_model", "vocab_size", "intermediate_size", "n_inner", "ffn_dim",
    "num_attention_heads", "n_head", "num_key_value_heads", "head_dim",
)  # fmt: skip


def hindrance(config: Mapping[str, Any]) -> str:
    """Why no engine may load it, with field and remedy; "" if there is no such reason."""
    if config.get("is_encoder_decoder") is True:
        return (
            "is_encoder_decoder = True: an encoder with a decoder (T5, BART, Whisper) does not go"
            " on from its prompt, and no engine here runs it: call transformers' generate() in a"
            " model of your own (docs/tutorial)"
        )
    kind = config.get("model_type")
    if kind is not None and not (kind and isinstance(kind, str)):
        return f"config.json: model_type = {_shown(kind)}: it names no kind of model: {AGAIN}"
    names = config.get("architectures")
    if names is not None and not (
        isinstance(names, list) and all(isinstance(name, str) for name in names)
    ):
        return f"config.json: architectures = {_shown(names)}: must be a list of names: {AGAIN}"
    text = config.get("text_config")
    return _wrong_size(config) or (_wrong_size(text) if isinstance(text, dict) else "")


def _wrong_size(part: Mapping[str, Any]) -> str:
    for name, value in part.items():
        if name in LAYERS or name in SIZES:
            most = MOST_LAYERS if name in LAYERS else MOST
            if not _is_size(value, most):
                return (
                    f"config.json: {name} = {_shown(value)}: must be a whole number from 0 to"
                    f" {most}: {AGAIN}"
                )
        elif name in POSITIONS and type(value) in (int, bool, float) and value < 1:
            return f"config.json: {name} = {_shown(value)}: must be at least 1: {AGAIN}"
    return ""


def _is_size(value: Any, most: int) -> bool:
    """Whether it may be a size: null is a library's default, a list has one for each layer."""
    if value is None:
        return True
    if isinstance(value, list):
        return len(value) <= MOST_LAYERS and all(_is_size(one, most) for one in value)
    return type(value) is int and 0 <= value <= most


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


_PLACE: Final = re.compile(r"(?<![\w.])~?/[^\s'\":,]{2,}")


def brief(error: BaseException) -> str:
    """The type and the first two lines of `error`, at most 200 characters, without file paths."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = _PLACE.sub("...", " ".join(lines[:2]))
    return f"{type(error).__name__}: {text[:200]}"
