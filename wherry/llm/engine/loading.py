"""How is the engine of a checkpoint built on a device: precision, cache size, threads?"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import thread_time
from typing import Any

import torch

from wherry.core.api import ConfigError, move_weights
from wherry.llm.engine.checkpoint import Checkpoint
from wherry.llm.engine.choice import AUTO, Here, choose, folder_facts
from wherry.llm.engine.device import timer_of
from wherry.llm.engine.engine import Engine
from wherry.llm.engine.fallback import AttentionDiffers, TransformersNetwork
from wherry.llm.engine.kv_cache import KVCache
from wherry.llm.engine.linear import Packed, rounded_rows
from wherry.llm.engine.lora import Adapters
from wherry.llm.engine.memory import (
    RUNNING,
    RUNNING_ON_GPU,
    STEP_TOKENS,
    STEP_TOKENS_ON_GPU,
    cpu_cache_bytes,
    free_bytes,
    give_back_freed,
)
from wherry.llm.engine.model import Decoder, Shape
from wherry.llm.engine.own_states import StateRunner, load_states, most_positions
from wherry.llm.engine.runner import ModelRunner, Network, cache_bytes_per_token, load_network
from wherry.llm.engine.scheduler import PROMPT_SHARE
from wherry.llm.engine.tokenizer import Tokenizer
from wherry.llm.engine.weights import DTYPES

log = logging.getLogger("wherry")

QUANTIZATIONS = (None, "int8")
#: The engines that run in this loop.
OURS = frozenset(("wherry", "transformers"))
#: Share of a GPU's free memory, after loading the weights, that the KV cache gets by default.
GPU_SHARE = 0.85
#: The context of a model whose configuration names no bound, unless context_tokens is set.
UNBOUNDED_CONTEXT = 1 << 15


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """In which precision a checkpoint is computed, and how much runs at once: settings of `LLM`."""

    dtype: str = "auto"
    quantization: str | None = None
    engine: str = AUTO
    #: Whether it takes adapters.
    adapted: bool = False
    context_tokens: int | None = None
    cache_gb: float | None = None
    #: Share of a GPU that weights, cache and steps may take together.
    gpu_memory: float | None = None
    max_running: int = RUNNING
    max_step_tokens: int = STEP_TOKENS
    prompt_share: float = PROMPT_SHARE
    block_size: int = 16
    threads: int | None = None

    def check(self, name: str) -> None:
        """ConfigError names a value that fits no checkpoint."""
        if self.threads is not None and self.threads < 1:
            raise ConfigError(f"model {name!r}: threads must be at least 1, not {self.threads}")
        if self.gpu_memory is not None and not 0 < self.gpu_memory <= 1:
            raise ConfigError(
                f"model {name!r}: gpu_memory is a share of a GPU, above 0 and at most 1, not"
                f" {self.gpu_memory}"
            )
        if self.gpu_memory is not None and self.cache_gb is not None:
            raise ConfigError(f"model {name!r}: cache_gb and gpu_memory: give one of them")
        if self.quantization not in QUANTIZATIONS:
            raise ConfigError(
                f"model {name!r}: quantization must be 'int8' or None, not {self.quantization!r}"
            )


def load_engine(
    source: str,
    name: str,
    device_name: str,
    *,
    make_runner: Callable[..., ModelRunner] = ModelRunner,
    network: Network | None = None,
    **settings: Any,
) -> tuple[Engine, Tokenizer]:
    """Load a checkpoint and build its engine and tokenizer. `settings` are those of EngineSettings.

    Blocks: reads (or downloads) files and may compile. `make_runner` makes the runner of the steps;
    `network` is one of this checkpoint, loaded before with these settings.
    ConfigError names settings that do not fit the checkpoint or device.
    """
    device = torch.device(device_name)
    chosen = {field: value for field, value in settings.items() if value is not None}
    if device.type == "cuda":
        sizes = {"max_running": RUNNING_ON_GPU, "max_step_tokens": STEP_TOKENS_ON_GPU}
        chosen = sizes | chosen
    engine_settings = EngineSettings(**chosen)
    engine_settings.check(name)
    torch.set_num_threads(engine_settings.threads or _threads())
    if device.type == "cuda":
        # cuDNN would plan attention anew for each shape, for nearly half a second, and steps have
        # a new one again and again.
        torch.backends.cuda.enable_cudnn_sdp(False)
    checkpoint = Checkpoint.find(source)
    ours = Here(OURS, gpu=device.type != "cpu")
    choice = choose(folder_facts(checkpoint), ours, engine_settings.engine)
    log.info("engine", extra={"model": name, "engine": choice.engine, "reason": choice.reason})
    exact = choice.engine == "wherry"
    config = checkpoint.config(exact=exact)
    tokenizer = Tokenizer.load(checkpoint.folder)  # before the weights, which may take minutes
    precision = _precision(engine_settings.dtype, config, device)
    engine = partial(
        Engine,
        name=name,
        ends=_ends(config, checkpoint.generation_config(), tokenizer),
        max_step_tokens=engine_settings.max_step_tokens,
        prompt_share=engine_settings.prompt_share,
        timer=timer_of(device),
    )
    loading = _Loading(name, checkpoint, config, exact, precision, device, engine_settings, engine)
    made = loading.engine_of(network, make_runner)
    tokenizer.most_tokens = made.context_tokens
    give_back_freed()
    return made, tokenizer


@dataclass(frozen=True, slots=True)
class _Loading:
    name: str
    checkpoint: Checkpoint
    config: Any
    #: Whether wherry's engine computes it; else transformers' modules.
    exact: bool
    precision: str
    device: torch.device
    engine_settings: EngineSettings
    #: Makes the engine from the parts that are built here.
    engine: Callable[..., Engine]

    def engine_of(self, network: Network | None, make_runner: Callable[..., ModelRunner]) -> Engine:
        """Load the weights, unless there is a network. With the engine's attention, else with a
        cache for each sequence."""
        engine_settings = self.engine_settings
        if network is not None:
            return self._with_attention(network, make_runner)
        try:
            network = load_network(
                self.checkpoint,
                dtype=self.precision,
                device=self.device,
                quantization=engine_settings.quantization,
                exact=self.exact and not engine_settings.adapted,
            )
        except AttentionDiffers as error:
            if engine_settings.adapted or engine_settings.quantization is not None:
                raise
            log.info(
                "each sequence has a cache of its own",
                extra={"model": self.name, "reason": str(error)},
            )
        else:
            return self._with_attention(network, make_runner)
        return self._with_states(
            load_states(self.checkpoint, dtype=self.precision, device=self.device)
        )

    def _with_attention(self, network: Network, make_runner: Callable[..., ModelRunner]) -> Engine:
        shape, engine_settings, dtype = network.shape, self.engine_settings, DTYPES[self.precision]
        if shape.max_positions < self.config.get_text_config().max_position_embeddings:
            log.warning(
                "context shorter than the checkpoint's: longer ones would not be computed exactly",
                extra={"model": self.name, "context_tokens": shape.max_positions},
            )
        context = min(engine_settings.context_tokens or shape.max_positions, shape.max_positions)
        per_token = cache_bytes_per_token(shape, dtype)
        blocks = self._blocks(per_token, context)
        tokens = blocks * engine_settings.block_size
        log.info(
            "key-value cache",
            extra={
                "model": self.name,
                "tokens": tokens,
                "bytes": tokens * per_token,
                "max_running": engine_settings.max_running,
                "max_step_tokens": engine_settings.max_step_tokens,
            },
        )
        runner = make_runner(
            network,
            cache_tokens=tokens,
            block_size=engine_settings.block_size,
            dtype=dtype,
            device=self.device,
        )
        if self.device.type == "cpu" and engine_settings.cache_gb is not None:
            _commit(runner)
        runner.prepare(engine_settings.max_running)
        if isinstance(network, Decoder) and self.device.type == "cpu":
            compile_programs(
                network,
                max_step_tokens=engine_settings.max_step_tokens,
                max_running=engine_settings.max_running,
            )
        made = self.engine(
            runner.run,
            KVCache(blocks, engine_settings.block_size),
            vocabulary=shape.vocabulary,
            context_tokens=context,
            max_running=engine_settings.max_running,
            context_per_token=_context_per_token(shape),
            keep=runner.keep,
        )
        if isinstance(network, TransformersNetwork):
            made.adapters = Adapters(network.adapt, dtype, self.device)
        else:
            made.network = network
        return made

    def _blocks(self, per_token: int, context: int) -> int:
        """Blocks of the paged cache: twice what the running sequences can fill, as the rest holds
        prefixes. More would not be used."""
        bytes_each = per_token * self.engine_settings.block_size
        most = 2 * self.engine_settings.max_running * -(-context // self.engine_settings.block_size)
        blocks = min(_cache_bytes(self.engine_settings, self.device) // bytes_each, most)
        if blocks < 1:
            raise ConfigError(
                f"model {self.name!r}: no memory for the key-value cache: one block of"
                f" {self.engine_settings.block_size} tokens takes {bytes_each} bytes; raise"
                " cache_gb or gpu_memory, or choose a smaller dtype"
            )
        return blocks

    def _with_states(self, states: StateRunner) -> Engine:
        """The engine of a runner with states. The sequences that run at once leave half of the
        memory to what grows with their tokens, and to the copy that joins caches."""
        engine_settings, positions = self.engine_settings, most_positions(self.config)
        room = _cache_bytes(engine_settings, self.device)
        context = min(
            engine_settings.context_tokens or min(positions, UNBOUNDED_CONTEXT), positions
        )
        fixed, per_token = states.bytes_per_sequence()
        running = min(engine_settings.max_running, room // (2 * fixed) if fixed else 1 << 30)
        blocks = running * -(-context // engine_settings.block_size)
        if per_token:
            left = room - running * fixed
            blocks = min(blocks, int(left // (per_token * engine_settings.block_size)))
        if blocks < 1:
            raise ConfigError(
                f"model {self.name!r}: no memory for the caches: a sequence takes {fixed} bytes,"
                f" and {per_token:.0f} for each token; raise cache_gb, or choose a smaller dtype"
            )
        if running < engine_settings.max_running:
            log.warning(
                "fewer sequences run at once, as each has a state",
                extra={"model": self.name, "max_running": running, "bytes_each": fixed},
            )
        cache = KVCache(blocks, engine_settings.block_size, shares_prefixes=False)
        return self.engine(
            states.run,
            cache,
            vocabulary=states.vocabulary,
            context_tokens=context,
            max_running=running,
        )


@torch.inference_mode()  # as all of these tensors were made
def moved(values: Iterable[Any], device: str) -> list[torch.Tensor]:
    """Move the tensors of networks to "cpu" or a GPU. Returns those that were elsewhere."""
    found, todo = list[Any](), [*values]
    while todo:
        value = todo.pop()
        if isinstance(value, torch.Tensor | torch.nn.Module):
            found.append(value)
        elif isinstance(value, list):
            todo += value
        elif type(value).__module__.startswith("wherry.") and hasattr(value, "__dict__"):
            todo += vars(value).values()
    return move_weights(found, device)


def _context_per_token(shape: Shape) -> float:
    """The context length at which a prefill token takes twice as long. Attention then does half as
    many multiplications as the linear layers; on a CPU they take twice as long each."""
    attention = shape.heads * shape.head_size
    products = shape.hidden * (2 * attention + 2 * shape.kv_heads * shape.head_size)
    products += 3 * shape.hidden * shape.feed_forward
    return 0.5 * products / (2 * attention)


def _precision(dtype: str, config: Any, device: torch.device) -> str:
    """The datatype to compute in. "auto": the checkpoint's own on a GPU; float32 on a CPU, where
    weights of 16 bits are kept as such."""
    if dtype == "auto":
        if device.type == "cpu":
            return "float32"
        stored = str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")
        return stored if stored in DTYPES else "bfloat16"
    if dtype not in DTYPES:
        raise ConfigError(f"dtype must be 'auto' or one of {', '.join(DTYPES)}, not {dtype!r}")
    return dtype


def _cache_bytes(engine_settings: EngineSettings, device: torch.device) -> int:
    if engine_settings.cache_gb is not None:
        return int(engine_settings.cache_gb * 1e9)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what loading has freed is not in use
        free, total = torch.cuda.mem_get_info(device)
        if engine_settings.gpu_memory is not None:
            left = total * engine_settings.gpu_memory - torch.cuda.memory_allocated(device)
            free = max(0, min(free, int(left)))
        return int(free * GPU_SHARE)
    return cpu_cache_bytes(None, free_bytes())


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
    """Write to the whole KV cache, so that its memory is allocated now. Otherwise it is where a
    block is first used, and might be missing hours later."""
    for tensor in (*runner.attention.keys, *runner.attention.values):
        tensor.zero_()


def _ends(config: Any, generation: Any, tokenizer: Tokenizer) -> frozenset[int]:
    ends: set[int] = set()
    for named in (generation.get("eos_token_id"), getattr(config, "eos_token_id", None)):
        if isinstance(named, int):
            ends.add(named)
        elif isinstance(named, list):
            ends.update(token for token in named if isinstance(token, int))
    if tokenizer.end is not None:
        ends.add(tokenizer.end)
    return frozenset(ends)


#: Limit of the compilation, in CPU seconds of the calling thread. For a large model the large
#: numbers of rows, which are rare, are compiled when they occur.
MOST_SECONDS = 5.0


@torch.inference_mode()
def compile_programs(
    network: Decoder,
    *,
    max_step_tokens: int,
    max_running: int,
    clock: Callable[[], float] = thread_time,
) -> None:
    """Multiply once for each weight shape and each number of rows that a step may have.

    Blocks for at most about MOST_SECONDS of CPU time.
    """
    ends_at = clock() + MOST_SECONDS
    layer, hidden = network.layers[0], network.embedding.shape[1]
    shape, like = network.shape, network.norm
    attended = shape.heads * shape.head_size
    products = [
        (layer.qkv, hidden, max_step_tokens),
        (layer.output, attended, max_step_tokens),
        (layer.gate_up, hidden, max_step_tokens),
        (layer.down, shape.feed_forward, max_step_tokens),
        (network.head, hidden, max_running),  # logits are computed for one token of a sequence
    ]
    packed = [(p, width, most) for p, width, most in products if isinstance(p, Packed)]
    rows = 1
    while packed and rows <= max_step_tokens and clock() < ends_at:
        for product, width, most in packed:
            if rows <= most:
                product(like.new_zeros(rows, width))
        rows = rounded_rows(rows) + 1
