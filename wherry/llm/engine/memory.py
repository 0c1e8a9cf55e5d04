"""How much memory does a checkpoint need, by what is in its files, and how much is free?"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from wherry.core.api import Machine
from wherry.llm.engine import gguf_file
from wherry.llm.engine.checkpoint import Checkpoint, stored_tensors
from wherry.llm.engine.choice import is_gguf
from wherry.llm.formats.answer_text import ModelStyle

#: Bytes of an element by the name of its datatype.
BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}
GGUF: Final = "GGUF"
#: Datatypes that an engine of floats unpacks, each to one number; others are packed in groups.
UNPACKED: Final = (GGUF, "F8_E4M3", "F8_E5M2")
#: What safetensors calls datatypes of weights.
_NAMES: Final = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


@dataclass(frozen=True, slots=True)
class Needs:
    """What a checkpoint needs. Fields that its files do not contain are 0 or ""."""

    #: Its number of weights; those packed by a quantization count as they are stored.
    parameters: int
    stored_bytes: int
    #: The datatype of most of its bytes.
    stored_as: str
    context_tokens: int
    #: The numbers that one token has in the KV cache.
    cached_per_token: int
    has_chat_template: bool
    tool_parser: str = ""
    reasoning_parser: str = ""

    def weight_bytes(self, dtype: str) -> int:
        """The memory of the weights in a datatype; of those that stay packed, as stored."""
        if dtype not in BYTES or self.stored_as not in (*BYTES, *UNPACKED):
            return self.stored_bytes
        return self.parameters * BYTES[dtype]

    def cache_bytes(self, tokens: int, dtype: str) -> int:
        return tokens * self.cached_per_token * BYTES.get(dtype, 2)


def needs_of(source: str) -> Needs:
    """The needs of a folder or a GGUF file. ConfigError if a file is missing or damaged."""
    path = Path(source).expanduser()
    return _of_gguf(path) if is_gguf(source) else _of_folder(Checkpoint(path))


def _of_folder(checkpoint: Checkpoint) -> Needs:
    parameters = stored = 0
    kinds: Counter[str] = Counter()
    for file in checkpoint.weight_files():
        for tensor in stored_tensors(file).values():
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
        style.tools,
        style.thoughts,
    )


def _of_gguf(path: Path) -> Needs:
    size = path.stat().st_size
    with path.open("rb") as opened:
        header = gguf_file.read(opened, size)
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
        style.tools,
        style.thoughts,
    )


def _cached(config: Mapping[str, Any]) -> int:
    layers = _whole(config, "num_hidden_layers", "n_layer")
    heads = _whole(config, "num_attention_heads", "n_head")
    hidden = _whole(config, "hidden_size", "n_embd")
    kv_heads = _whole(config, "num_key_value_heads") or heads
    width = _whole(config, "head_dim") or (hidden // heads if heads else 0)
    return 2 * layers * kv_heads * width


def _whole(values: Mapping[str, Any], *names: str) -> int:
    found = (values.get(name) for name in names)
    return next((v for v in found if type(v) is int and v > 0), 0)


#: Share of the free memory, after loading the weights, that the KV cache gets by default.
CPU_SHARE: Final = 0.25
#: Maximum of the KV cache on a CPU by default, as the memory is shared with other programs. Memory
#: is taken where a block is first used.
CPU_MOST_BYTES: Final = 4e9
#: Sequences that run at once, and tokens of a step, by default.
RUNNING, STEP_TOKENS = 64, 512
#: On a GPU: a decode step of 256 takes little longer than one of 64, and 512 tokens of prompts do
#: not fill it.
RUNNING_ON_GPU, STEP_TOKENS_ON_GPU = 256, 8192


def cpu_cache_bytes(cache_gb: float | None, free: int) -> int:
    """The KV cache's size on a CPU: the setting, or a share of the free memory."""
    return int(cache_gb * 1e9 if cache_gb is not None else min(free * CPU_SHARE, CPU_MOST_BYTES))


def free_bytes(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Free memory in bytes: of the machine or of the container, whichever is less."""
    free = Machine().available_bytes()
    if free is None:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        most = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
        of_files = re.search(r"^file (\d+)$", (cgroup / "memory.stat").read_text(), re.M)
    except (OSError, ValueError):
        return free
    # Cached pages of files, such as the weights, are freed when memory is needed.
    return min(free, max(0, most - used + int(of_files[1] if of_files else 0)))


def give_back_freed() -> None:
    """Return the memory that loading has freed to the system, where the C library can: it keeps
    parts of copies, 55 MB for a model of 500 MB."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
        if trim is not None:
            trim(0)


def multiplies_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether Linux reports instructions for products of bfloat16 for the first processor."""
    try:
        flags = re.search(r"^flags\s*:(.*)$", cpuinfo.read_text(), re.M)
    except OSError:
        return False
    return flags is not None and not {"avx512_bf16", "amx_bf16"}.isdisjoint(flags[1].split())
