"""How is the engine of a checkpoint built on a device: precision, cache size, threads?"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from wherry.llm.checkpoint import Checkpoint
from wherry.llm.choice import AUTO, Here, choose
from wherry.llm.engine import Engine
from wherry.llm.facts import folder_facts, here
from wherry.llm.fallback import AttentionDiffers, TransformersNetwork
from wherry.llm.kv_cache import KVCache
from wherry.llm.lora import Adapters
from wherry.llm.model import Decoder, Shape
from wherry.llm.own_states import StateRunner, load_states, most_positions
from wherry.llm.precompile import compile_programs
from wherry.llm.runner import ModelRunner, Network, cache_bytes_per_token, load_network
from wherry.llm.scheduler import PROMPT_SHARE, Chunk
from wherry.llm.tokenizer import Tokenizer
from wherry.llm.weights import DTYPES
from wherry.observability.machine import Machine
from wherry.values.errors import ConfigError

log = logging.getLogger("wherry")

QUANTIZATIONS = (None, "int8")
#: The engines that run in this loop.
OURS = frozenset(("wherry", "transformers"))
#: Share of the free memory, after loading the weights, that the KV cache gets by default.
CPU_SHARE = 0.25
GPU_SHARE = 0.85
#: The context of a model whose configuration names no bound, unless context_tokens is set.
UNBOUNDED_CONTEXT = 1 << 15
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
    ours = Here(OURS, gpu=device.type != "cpu", packages=here().packages)
    choice = choose(folder_facts(checkpoint), ours, engine)
    log.info("engine", extra={"model": name, "engine": choice.engine, "reason": choice.reason})
    exact = choice.engine == "wherry"
    config = checkpoint.config(exact=exact)
    precision = _precision(dtype, config, device)
    if quantization not in QUANTIZATIONS:
        raise ConfigError(
            f"model {name!r}: quantization must be 'int8' or None, not {quantization!r}"
        )
    wanted = _Wanted(name, context_tokens, _cache_bytes(cache_gb, device), max_running, block_size)
    try:
        network = load_network(
            checkpoint,
            dtype=precision,
            device=device,
            quantization=quantization,
            exact=exact,
            adapted=adapted,
        )
    except AttentionDiffers as error:
        if exact or adapted or quantization is not None:
            raise
        network, why = None, str(error)
    if network is None:
        log.info("each sequence has a cache of its own", extra={"model": name, "reason": why})
        states = load_states(checkpoint, dtype=precision, device=device)
        built = _with_states(states, most_positions(config), wanted)
    else:
        built = _with_attention(network, config, DTYPES[precision], device, wanted, make_runner)
        if isinstance(network, Decoder) and device.type == "cpu" and precision == "float32":
            compile_programs(network, max_step_tokens=max_step_tokens, max_running=max_running)
    tokenizer = Tokenizer.load(checkpoint.folder, most_tokens=built.context)
    ends = _ends(config, checkpoint.generation_config(), tokenizer)
    made = Engine(
        built.run,
        built.cache,
        name=name,
        vocabulary=built.vocabulary,
        context_tokens=built.context,
        ends=ends,
        max_running=built.max_running,
        max_step_tokens=max_step_tokens,
        prompt_share=prompt_share,
        context_per_token=built.context_per_token,
    )
    if isinstance(network, TransformersNetwork):
        made.adapters = Adapters(network, DTYPES[precision], device)
    return made, tokenizer


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The settings that decide how large a cache is."""

    name: str
    context_tokens: int | None
    cache_bytes: int
    max_running: int
    block_size: int


@dataclass(frozen=True, slots=True)
class _Built:
    """What computes steps, and the room that it has."""

    run: Callable[[Sequence[Chunk]], torch.Tensor]
    cache: KVCache
    vocabulary: int
    context: int
    max_running: int
    context_per_token: float = float("inf")


def _with_attention(
    network: Network,
    config: Any,
    dtype: torch.dtype,
    device: torch.device,
    wanted: _Wanted,
    make_runner: Callable[..., ModelRunner],
) -> _Built:
    """Build the paged cache of a network that uses the engine's attention."""
    shape, name, block_size = network.shape, wanted.name, wanted.block_size
    if shape.max_positions < config.get_text_config().max_position_embeddings:
        log.warning(
            "context shorter than the checkpoint's: longer ones would not be computed exactly",
            extra={"model": name, "context_tokens": shape.max_positions},
        )
    context = min(wanted.context_tokens or shape.max_positions, shape.max_positions)
    per_token = cache_bytes_per_token(shape, dtype)
    room = wanted.cache_bytes // (per_token * block_size)
    # Twice what the running sequences can fill: the rest holds prefixes. More would not be used.
    blocks = min(room, 2 * wanted.max_running * -(-context // block_size))
    if blocks < 1:
        raise ConfigError(
            f"model {name!r}: no memory for the key-value cache: one block of {block_size} tokens"
            f" takes {per_token * block_size} bytes; raise cache_gb, or choose a smaller dtype"
        )
    runner = make_runner(
        network,
        cache_tokens=blocks * block_size,
        block_size=block_size,
        dtype=dtype,
        device=device,
    )
    if device.type == "cpu":
        _commit(runner)
    runner.prepare(wanted.max_running)
    return _Built(
        runner.run,
        KVCache(blocks, block_size),
        shape.vocabulary,
        context,
        wanted.max_running,
        _context_per_token(shape),
    )


def _with_states(states: StateRunner, positions: int, wanted: _Wanted) -> _Built:
    """Give each sequence of a runner with states its part of the memory: as many run at once as
    leave half of it to what grows with their tokens."""
    context = min(wanted.context_tokens or min(positions, UNBOUNDED_CONTEXT), positions)
    fixed, per_token = states.bytes_per_sequence()
    running = min(wanted.max_running, wanted.cache_bytes // (2 * fixed) if fixed else 1 << 30)
    blocks = running * -(-context // wanted.block_size)
    if per_token:
        left = wanted.cache_bytes - running * fixed
        blocks = min(blocks, int(left // (per_token * wanted.block_size)))
    if blocks < 1:
        raise ConfigError(
            f"model {wanted.name!r}: no memory for the caches: a sequence takes {fixed} bytes, and"
            f" {per_token:.0f} for each token; raise cache_gb, or choose a smaller dtype"
        )
    if running < wanted.max_running:
        log.warning(
            "fewer sequences run at once, as each has a state",
            extra={"model": wanted.name, "max_running": running, "bytes_each": fixed},
        )
    cache = KVCache(blocks, wanted.block_size, shares_prefixes=False)
    return _Built(states.run, cache, states.vocabulary, context, running)


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
