"""How is the engine of a checkpoint built on a device: precision, cache size, threads?"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from wherry.llm.checkpoint import Checkpoint
from wherry.llm.choice import AUTO, Here, choose
from wherry.llm.engine import Engine
from wherry.llm.facts import folder_facts
from wherry.llm.fallback import TransformersNetwork
from wherry.llm.kv_cache import KVCache
from wherry.llm.lora import Adapters
from wherry.llm.model import Decoder, Shape
from wherry.llm.precompile import compile_programs
from wherry.llm.runner import ModelRunner, cache_bytes_per_token, load_network
from wherry.llm.scheduler import PROMPT_SHARE
from wherry.llm.tokenizer import Tokenizer
from wherry.llm.weights import DTYPES
from wherry.observability.machine import Machine
from wherry.values.errors import ConfigError

log = logging.getLogger("wherry")

QUANTIZATIONS = (None, "int8")
#: The engines that run in this loop.
OURS = Here(frozenset(("wherry", "transformers")))
#: Share of the free memory, after loading the weights, that the KV cache gets by default.
CPU_SHARE = 0.25
GPU_SHARE = 0.85
#: Maximum of the KV cache on a CPU by default, as the memory is shared with other programs.
CPU_MOST_BYTES = 4e9


def load_engine(
    source: str,
    name: str,
    device_name: str,
    *,
    dtype: str = "auto",
    quantization: str | None = None,
    engine: str = AUTO,
    adapted: bool = False,
    context_tokens: int | None = None,
    cache_gb: float | None = None,
    max_running: int = 64,
    max_step_tokens: int = 512,
    prompt_share: float = PROMPT_SHARE,
    block_size: int = 16,
    threads: int | None = None,
    make_runner: Callable[..., ModelRunner] = ModelRunner,
) -> tuple[Engine, Tokenizer]:
    """Load a checkpoint and build its engine and tokenizer. If it is to be `adapted`, the engine
    takes adapters.

    Blocks: reads (or downloads) files and may compile. `make_runner` makes what computes the steps.
    ConfigError names settings that do not fit
    the checkpoint or device.
    """
    if threads is not None and threads < 1:
        raise ConfigError(f"model {name!r}: threads must be at least 1, not {threads}")
    torch.set_num_threads(threads or _threads())
    device = torch.device(device_name)
    checkpoint = Checkpoint.find(source)
    choice = choose(folder_facts(checkpoint), OURS, engine)
    log.info("engine", extra={"model": name, "engine": choice.engine, "reason": choice.reason})
    exact = choice.engine == "wherry"
    config = checkpoint.config(exact=exact)
    precision = _precision(dtype, config, device)
    if quantization not in QUANTIZATIONS:
        raise ConfigError(
            f"model {name!r}: quantization must be 'int8' or None, not {quantization!r}"
        )
    network = load_network(
        checkpoint,
        dtype=precision,
        device=device,
        quantization=quantization,
        exact=exact,
        adapted=adapted,
    )
    shape = network.shape
    if shape.max_positions < config.max_position_embeddings:
        log.warning(
            "context shorter than the checkpoint's: longer ones would not be computed exactly",
            extra={"model": name, "context_tokens": shape.max_positions},
        )
    context = min(context_tokens or shape.max_positions, shape.max_positions)
    per_token = cache_bytes_per_token(shape, DTYPES[precision])
    room = _cache_bytes(cache_gb, device) // (per_token * block_size)
    # Twice what the running sequences can fill: the rest holds prefixes. More would not be used.
    blocks = min(room, 2 * max_running * -(-context // block_size))
    if blocks < 1:
        raise ConfigError(
            f"model {name!r}: no memory for the key-value cache: one block of {block_size} tokens"
            f" takes {per_token * block_size} bytes; raise cache_gb, or choose a smaller dtype"
        )
    runner = make_runner(
        network,
        cache_tokens=blocks * block_size,
        block_size=block_size,
        dtype=DTYPES[precision],
        device=device,
    )
    if device.type == "cpu":
        _commit(runner)
        if precision == "float32" and isinstance(network, Decoder):
            compile_programs(network, max_step_tokens=max_step_tokens, max_running=max_running)
    runner.prepare(max_running)
    tokenizer = Tokenizer.load(checkpoint.folder, most_tokens=context)
    ends = _ends(config, checkpoint.generation_config(), tokenizer)
    made = Engine(
        runner.run,
        KVCache(blocks, block_size),
        name=name,
        vocabulary=shape.vocabulary,
        context_tokens=context,
        ends=ends,
        max_running=max_running,
        max_step_tokens=max_step_tokens,
        prompt_share=prompt_share,
        context_per_token=_context_per_token(shape),
    )
    if isinstance(network, TransformersNetwork):
        made.adapters = Adapters(network, DTYPES[precision], device)
    return made, tokenizer


def _context_per_token(shape: Shape) -> float:
    """The context length at which a prefill token takes twice as long. Attention then does half as
    many multiplications as the linear layers; on a CPU they take twice as long each."""
    attention = shape.heads * shape.head_size
    products = shape.hidden * (2 * attention + 2 * shape.kv_heads * shape.head_size)
    products += 3 * shape.hidden * shape.feed_forward
    return 0.5 * products / (2 * attention)


def _precision(dtype: str, config: Any, device: torch.device) -> str:
    """The datatype to compute in. "auto": the checkpoint's own on a GPU; float32 on a CPU, where
    half precision only saves memory."""
    if dtype == "auto":
        if device.type == "cpu":
            return "float32"
        stored = str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")
        return stored if stored in DTYPES else "bfloat16"
    if dtype not in DTYPES:
        raise ConfigError(f"dtype must be 'auto' or one of {', '.join(DTYPES)}, not {dtype!r}")
    return dtype


def _cache_bytes(cache_gb: float | None, device: torch.device) -> int:
    if cache_gb is not None:
        return int(cache_gb * 1e9)
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * GPU_SHARE)
    return int(min(_free_bytes() * CPU_SHARE, CPU_MOST_BYTES))


def _free_bytes(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
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
    # Cached pages of files, such as the weights, are given up when memory is needed.
    return min(free, max(0, most - used + int(of_files[1] if of_files else 0)))


def _threads(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """The number of threads to compute with: torch's default (one for each core), at most the
    container's CPU quota. More threads would be throttled and waited for."""
    threads = torch.get_num_threads()
    try:
        quota, period = map(int, (cgroup / "cpu.max").read_text().split())
        return min(threads, -(-quota // period))
    except (OSError, ValueError, ZeroDivisionError):
        return threads


def _commit(runner: ModelRunner) -> None:
    """Write to the whole KV cache, so that its memory is allocated now. Otherwise memory would grow
    like a leak as prefixes fill it, and might be missing hours later."""
    for tensor in (*runner.attention.keys, *runner.attention.values):
        tensor.zero_()


def _ends(config: Any, generation: Any, tokenizer: Tokenizer) -> frozenset[int]:
    """The end-of-text tokens that the checkpoint's files name."""
    ends: set[int] = set()
    for named in (generation.get("eos_token_id"), getattr(config, "eos_token_id", None)):
        if isinstance(named, int):
            ends.add(named)
        elif isinstance(named, list):
            ends.update(token for token in named if isinstance(token, int))
    if tokenizer.end is not None:
        ends.add(tokenizer.end)
    return frozenset(ends)
