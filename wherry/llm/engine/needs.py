"""What does a checkpoint need: memory, datatype, context? Read from headers before it is loaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from wherry.llm.engine import gguf_header
from wherry.llm.engine.checkpoint import Checkpoint
from wherry.llm.engine.facts import is_gguf
from wherry.llm.engine.safetensors_header import stored_tensors
from wherry.llm.formats.model_style import ModelStyle

#: Bytes of an element by the name of its datatype.
BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}
GGUF: Final = "GGUF"
#: Numbers that an engine which computes floats unpacks, each to one; others are packed in groups.
UNPACKED: Final = (GGUF, "F8_E4M3", "F8_E5M2")
#: What safetensors calls datatypes of weights.
_NAMES: Final = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


@dataclass(frozen=True, slots=True)
class Needs:
    """What a checkpoint needs. Fields that its files do not tell are 0 or ""."""

    #: Its numbers: weights that are packed by a quantization count as they are stored.
    parameters: int
    stored_bytes: int
    #: The datatype of most of its bytes.
    stored_as: str
    context_tokens: int
    #: The numbers that one token has in the KV cache.
    cached_per_token: int
    has_chat_template: bool
    #: The numbers of an embedding that is the output's weight, too.
    shared_head: int = 0
    tool_parser: str = ""
    reasoning_parser: str = ""

    def weight_bytes(self, dtype: str) -> int:
        """The memory of the weights in a datatype; of those that stay packed, as stored."""
        if dtype not in BYTES or self.stored_as not in (*BYTES, *UNPACKED):
            return self.stored_bytes
        return self.parameters * BYTES[dtype]

    def cache_bytes(self, tokens: int, dtype: str) -> int:
        """The memory that this number of tokens takes in the KV cache."""
        return tokens * self.cached_per_token * BYTES.get(dtype, 2)


def needs_of(source: str) -> Needs:
    """The needs of a folder or a GGUF file. ConfigError if a file is missing or damaged."""
    path = Path(source).expanduser()
    return _of_gguf(path) if is_gguf(source) else _of_folder(Checkpoint(path))


def _of_folder(checkpoint: Checkpoint) -> Needs:
    parameters = stored = 0
    kinds: Counter[str] = Counter()
    sizes: dict[str, int] = {}
    for file in checkpoint.weight_files():
        for name, tensor in stored_tensors(file).items():
            sizes[name] = tensor.elements
            parameters += tensor.elements
            stored += tensor.nbytes
            kinds[tensor.dtype] += tensor.nbytes
    most = kinds.most_common(1)[0][0] if kinds else ""
    config = checkpoint.object("config.json")
    text = config.get("text_config")
    known = text if isinstance(text, dict) else config
    template = checkpoint.chat_template()
    style = ModelStyle(template, {})
    return Needs(
        parameters,
        stored,
        _NAMES.get(most, most),
        _whole(known, "max_position_embeddings", "n_positions"),
        _cached(known),
        bool(template),
        0 if "lm_head.weight" in sizes else sizes.get("model.embed_tokens.weight", 0),
        style.tools,
        style.thoughts,
    )


def _of_gguf(path: Path) -> Needs:
    size = path.stat().st_size
    with path.open("rb") as opened:
        header = gguf_header.read(opened, size)
    values = header.values
    kind = values.get("general.architecture")

    def number(name: str) -> int:
        return _whole(values, f"{kind}.{name}")

    heads = number("attention.head_count")
    width = number("attention.key_length") or (number("embedding_length") // heads if heads else 0)
    kv_heads = number("attention.head_count_kv") or heads
    template = values.get("tokenizer.chat_template")
    template = template if isinstance(template, str) else ""
    style = ModelStyle(template, {})
    return Needs(
        sum(header.tensors.values()),
        size,
        GGUF,
        number("context_length"),
        2 * number("block_count") * kv_heads * width,
        bool(template),
        tool_parser=style.tools,
        reasoning_parser=style.thoughts,
    )


def _cached(config: Mapping[str, Any]) -> int:
    """The keys and values of one token, over all layers."""
    layers = _whole(config, "num_hidden_layers", "n_layer")
    heads = _whole(config, "num_attention_heads", "n_head")
    hidden = _whole(config, "hidden_size", "n_embd")
    kv_heads = _whole(config, "num_key_value_heads") or heads
    width = _whole(config, "head_dim") or (hidden // heads if heads else 0)
    return 2 * layers * kv_heads * width


def _whole(values: Mapping[str, Any], *names: str) -> int:
    """The first of these that is a whole number above zero, or 0."""
    found = (values.get(name) for name in names)
    return next((v for v in found if type(v) is int and v > 0), 0)
