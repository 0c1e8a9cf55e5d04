"""What does the engine of language models give? All that the check uses of wherry's inner parts."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from tools.gpu_check.finding import (
    DEVICE,
    SMALL,
    bandwidth,
    product_rate,
    say,
    seconds,
    tried,
    wait,
)
from tools.gpu_check.parts import graph
from wherry.llm.engine.loading import load_engine
from wherry.llm.engine.sampling import Sampling

PROMPT, NEW = (16, 12) if SMALL else (128, 48)
LONG: Final = 64 if SMALL else 1500


class Shape(NamedTuple):
    """A decoder's sizes."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int

    @property
    def head(self) -> int:
        return self.hidden // self.heads

    @property
    def numbers(self) -> int:
        """Those that each token is multiplied with."""
        layer = 2 * self.hidden * self.head * (self.heads + self.kv_heads)
        layer += 3 * self.hidden * self.inner
        return self.layers * layer + self.vocabulary * self.hidden

    @property
    def cached_bytes(self) -> int:
        """Of a token's keys and values."""
        return 4 * self.layers * self.kv_heads * self.head


TINY: Final = Shape(64, 128, 2, 4, 2, 512)
#: Qwen2.5-7B's sizes; Llama 3.2 1B's.
SEVEN: Final = TINY if SMALL else Shape(3584, 18944, 28, 28, 4, 152064)
ONE: Final = TINY if SMALL else Shape(2048, 8192, 16, 32, 8, 128256)


def config(shape: Shape) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16",
        "hidden_size": shape.hidden, "intermediate_size": shape.inner, "head_dim": shape.head,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads, "vocab_size": shape.vocabulary,
        "max_position_embeddings": 8192, "eos_token_id": 256, "tie_word_embeddings": False,
        "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    }  # fmt: skip


def weights(shape: Shape) -> dict[str, Tensor]:
    """At random, by the names that Llama's have."""
    hidden, inner, kv = shape.hidden, shape.inner, shape.kv_heads * shape.head
    sizes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens": (shape.vocabulary, hidden), "model.norm": (hidden,),
        "lm_head": (shape.vocabulary, hidden),
    }  # fmt: skip
    of_layer: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden), "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner), "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }  # fmt: skip
    for layer in range(shape.layers):
        sizes |= {f"model.layers.{layer}.{name}": size for name, size in of_layer.items()}
    torch.manual_seed(0)
    numbers = {
        f"{name}.weight": torch.randn(size, device=DEVICE, dtype=torch.bfloat16) * 0.02
        for name, size in sizes.items()
    }
    return {name: one.add_(1) if one.ndim == 1 else one for name, one in numbers.items()}


@contextmanager
def checkpoint(shape: Shape) -> Iterator[Path]:
    """A folder with random weights and a tokenizer of letters, in memory where there is room."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 24e9
    with tempfile.TemporaryDirectory(dir=memory if roomy else None) as folder:
        Path(folder, "config.json").write_text(json.dumps(config(shape)))
        save_file(weights(shape), Path(folder, "model.safetensors"), {"format": "pt"})
        write_tokenizer(shape.vocabulary, Path(folder))
        freed()
        yield Path(folder)


def write_tokenizer(vocabulary: int, folder: Path) -> None:
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<|end|>"]
    pieces += [f"w{number}" for number in range(len(pieces), vocabulary)]
    made = Tokenizer(models.BPE({piece: n for n, piece in enumerate(pieces)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def freed() -> None:
    import gc

    gc.collect()
    if not SMALL:
        torch.cuda.empty_cache()


def prompts(count: int, tokens: int, seed: int = 0) -> list[list[int]]:
    dice = random.Random(f"{seed} {count}")
    return [[dice.randrange(256) for _ in range(tokens)] for _ in range(count)]


class Ours:
    """wherry's engine in this process, with its defaults for this device."""

    def __init__(self, folder: Path, streams: int) -> None:
        self.engine, _ = load_engine(
            str(folder), "m", DEVICE, dtype="bfloat16", max_running=streams,
            context_tokens=2048, cache_gb=0.05 if SMALL else None,
        )  # fmt: skip

    def started(self, asked: list[list[int]], new: int) -> list[Any]:
        wish = Sampling(temperature=0.0, max_tokens=new, ignore_eos=True)
        return [self.engine.add(prompt, wish)[0] for prompt in asked]

    def finish(self) -> None:
        while self.engine.busy:
            self.engine.step()

    def step_seconds(self, streams: int) -> float:
        """Of a step in which all of them decode."""
        running = self.started(prompts(streams, PROMPT, streams), NEW)
        while any(len(one.tokens) < PROMPT + 4 for one in running):
            self.engine.step()
        wait()
        before, began = _made(running), time.perf_counter()
        while all(len(one.tokens) < PROMPT + NEW for one in running):
            self.engine.step()
        took, made = time.perf_counter() - began, _made(running) - before
        self.finish()
        return took * streams / made

    def request_seconds(self, asked: list[list[int]], new: int) -> float:
        began = time.perf_counter()
        self.started(asked, new)
        self.finish()
        wait()
        return time.perf_counter() - began


def _made(running: list[Any]) -> int:
    return sum(len(one.tokens) for one in running)


def decode() -> None:
    moved, computed = bandwidth(), product_rate()
    shape = SEVEN
    streams = (1, 4) if SMALL else (1, 16, 64, 256)
    with checkpoint(shape) as folder:
        began = time.perf_counter()
        ours = Ours(folder, streams[-1])
        say("7B: load", seconds=time.perf_counter() - began)
        for count in streams:
            with tried(f"7B: {count} streams"):
                ours.step_seconds(count)  # kernels and recordings are made when first needed
                took = ours.step_seconds(count)
                needed = 2 * shape.numbers + count * shape.cached_bytes * (PROMPT + NEW / 2)
                share = needed / took / moved
                goals = {f"decode_{count}": share} if count in (1, 64) else {}
                if count == streams[-1]:
                    with tried("7B: bare loop"):
                        bare = seconds(bare_step(shape, count))
                        goals["decode_256"] = bare / took
                        say(f"7B: bare loop of a CUDA graph, {count} streams", step_ms=bare * 1e3)
                say(
                    f"7B: {count} streams", goals, step_ms=took * 1e3, tokens_s=count / took,
                    of_bandwidth=share,
                )  # fmt: skip
        with tried("7B: prompts"):
            asked = 2 if SMALL else 8
            ours.request_seconds(prompts(asked, LONG, 1), 1)
            took = ours.request_seconds(prompts(asked, LONG, 2), 1)
            share = 2 * shape.numbers * asked * LONG / took / computed
            say("7B: prompts", {"prompts": share}, tokens_s=asked * LONG / took)


@torch.inference_mode()
def bare_step(shape: Shape, streams: int) -> Callable[[], Any]:
    """A decode step with what any engine must compute, by torch's own calls, in one CUDA graph: the
    keys and values of each stream lie together, and nothing is scheduled. One layer's weights
    serve all layers of a like size, as they do not fit beside the engine's."""
    heads, kv_heads, size, hidden = shape.heads, shape.kv_heads, shape.head, shape.hidden

    def numbers(*sizes: int) -> Tensor:
        return torch.randn(sizes, device=DEVICE, dtype=torch.bfloat16) * 0.02

    qkv = numbers((heads + 2 * kv_heads) * size, hidden)
    out = numbers(hidden, hidden)
    up = numbers(2 * shape.inner, hidden)
    down = numbers(hidden, shape.inner)
    last = numbers(shape.vocabulary, hidden)
    words, norm = numbers(1024, hidden), numbers(1, hidden)[0]
    keys, values = (numbers(streams, kv_heads, PROMPT + NEW // 2, size) for _ in range(2))
    turn = numbers(streams, 1, size)
    ids = torch.zeros(streams, device=DEVICE, dtype=torch.long)

    @torch.inference_mode()
    def step() -> Tensor:
        x = words[ids]
        for _ in range(shape.layers):
            h = F.rms_norm(x, x.shape[-1:], norm)
            parts = F.linear(h, qkv).view(streams, heads + 2 * kv_heads, size)
            q, k, v = torch.split(parts, [heads, kv_heads, kv_heads], 1)
            q, k = q * turn, k * turn
            keys[:, :, -1], values[:, :, -1] = k, v
            y = F.scaled_dot_product_attention(q[:, :, None], keys, values, enable_gqa=True)
            x = x + F.linear(y.reshape(streams, -1), out)
            gate, open_ = F.linear(F.rms_norm(x, x.shape[-1:], norm), up).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * open_, down)
        return F.linear(F.rms_norm(x, x.shape[-1:], norm), last).argmax(-1)

    return graph(step)


def continuous() -> None:
    from transformers import AutoModelForCausalLM, GenerationConfig

    from benchmarks.llm import continuous_batching

    counts = (2,) if SMALL else (16, 64, 256)
    found = {}
    with checkpoint(ONE) as folder:
        ours = Ours(folder, counts[-1])
        for count in counts:
            ours.request_seconds(prompts(count, PROMPT, 1), NEW)
            found[count] = ours.request_seconds(prompts(count, PROMPT, 2), NEW)
        del ours
        freed()
        net: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        net = net.to(DEVICE).eval()
        wish = GenerationConfig(
            max_new_tokens=NEW, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        for count in counts:
            with tried(f"1B: generate_batch(), {count} requests"):
                for seed in (1, 2):
                    began = time.perf_counter()
                    net.generate_batch(
                        prompts(count, PROMPT, seed),
                        generation_config=wish,
                        continuous_batching_config=continuous_batching(count * (PROMPT + NEW)),
                    )
                    took = time.perf_counter() - began
                say(
                    f"1B: {count} requests, {PROMPT} + {NEW} tokens",
                    {"continuous": took / found[count]},
                    tokens_s=count * NEW / found[count],
                    generate_batch_tokens_s=count * NEW / took,
                )
