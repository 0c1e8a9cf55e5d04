"""How does a Llama-like decoder turn tokens into logits?

Llama (SmolLM, Mistral) and Qwen 2, 2.5 and 3, written plainly: one forward pass over the packed
tokens of all sequences of a step, no padding anywhere. What belongs to a sequence alone, its
attention, is asked of `Attention`; everything else is one matrix product for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from wherry.llm.attention import Attention, StepInputs
from wherry.llm.linear import Linear, MakeLinear

#: Finds a checkpoint's tensor by its name there.
Weights = Callable[[str], Tensor]

ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
)


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a decoder, from its checkpoint's config."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    max_positions: int
    norm_eps: float
    #: Tokens that each layer looks back at; None: all.
    windows: tuple[int | None, ...]

    @classmethod
    def of(cls, config: Any) -> Shape:
        heads = config.num_attention_heads
        return cls(
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            heads=heads,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
            vocabulary=config.vocab_size,
            max_positions=config.max_position_embeddings,
            norm_eps=getattr(config, "rms_norm_eps", 1e-6),
            windows=_windows(config),
        )


class Decoder:
    """The whole model: embedding, layers, head.

    A `first_step` is computed while the layers are read, one by one: those that keep something
    smaller, once they have seen what comes in, are never all there with their weights.
    """

    def __init__(
        self,
        config: Any,
        weights: Weights,
        linear: MakeLinear,
        first_step: tuple[StepInputs, Attention] | None = None,
    ) -> None:
        self.shape = shape = Shape.of(config)
        self.embedding = weights("model.embed_tokens.weight")
        self.rotary = Rotary(config, shape.head_size, self.embedding)
        self.norm = weights("model.norm.weight")
        tied = getattr(config, "tie_word_embeddings", False)
        self.head = linear(self.embedding if tied else weights("lm_head.weight"), None)
        self.layers: list[Layer] = []

        def reading() -> Iterator[Layer]:
            for number in range(shape.layers):
                self.layers.append(Layer(shape, weights, f"model.layers.{number}.", linear))
                yield self.layers[-1]

        if first_step is None:
            list(reading())
        else:
            self._pass(*first_step, reading())

    def forward(self, step: StepInputs, attention: Attention) -> Tensor:
        """The logits of the tokens that are asked for, one row each."""
        return self._pass(step, attention, self.layers)

    def _pass(self, step: StepInputs, attention: Attention, layers: Iterable[Layer]) -> Tensor:
        x = F.embedding(step.tokens, self.embedding)
        cos, sin = self.rotary(step.positions)
        for number, layer in enumerate(layers):
            x = layer.forward(x, cos, sin, step, attention, number)
        x = x.index_select(0, step.asked)
        return self.head(rms_norm(x, self.norm, self.shape.norm_eps))


class Layer:
    """Attention, then the gated feed-forward network, each added to what came in."""

    def __init__(
        self,
        shape: Shape,
        weights: Weights,
        name: str,
        linear: MakeLinear,
    ) -> None:
        def optional(*names: str) -> list[Tensor]:
            try:
                return [weights(name + n) for n in names]
            except KeyError:
                return []

        def joined(*names: str) -> Linear:
            """Several linear layers of the same input as one."""
            weight = torch.cat([weights(f"{name}{n}.weight") for n in names])
            biases = optional(*(f"{n}.bias" for n in names))
            return linear(weight, torch.cat(biases) if biases else None)

        self.shape = shape
        self.attention_norm = weights(name + "input_layernorm.weight")
        self.qkv = joined("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        self.head_norms = optional("self_attn.q_norm.weight", "self_attn.k_norm.weight")  # Qwen 3
        self.output = joined("self_attn.o_proj")
        self.mlp_norm = weights(name + "post_attention_layernorm.weight")
        self.gate_up = joined("mlp.gate_proj", "mlp.up_proj")
        self.down = joined("mlp.down_proj")

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        step: StepInputs,
        attention: Attention,
        number: int,
    ) -> Tensor:
        shape = self.shape
        heads, kv_heads, eps = shape.heads, shape.kv_heads, shape.norm_eps
        qkv = self.qkv(rms_norm(x, self.attention_norm, eps))
        qkv = qkv.view(len(x), heads + 2 * kv_heads, shape.head_size)
        qk, v = qkv[:, : heads + kv_heads], qkv[:, heads + kv_heads :]
        if self.head_norms:
            q_norm, k_norm = self.head_norms
            q, k = rms_norm(qk[:, :heads], q_norm, eps), rms_norm(qk[:, heads:], k_norm, eps)
            qk = torch.cat([q, k], 1)
        qk = rotate(qk, cos, sin)
        attended = attention(number, qk[:, :heads], qk[:, heads:], v, step, shape.windows[number])
        x = x + self.output(attended)
        gate, up = self.gate_up(rms_norm(x, self.mlp_norm, eps)).chunk(2, -1)
        return x + self.down(F.silu(gate).mul_(up))


class Rotary:
    """Positions as rotations of pairs of features, computed once for every position."""

    def __init__(self, config: Any, head_size: int, like: Tensor) -> None:
        frequencies, self._scale = _frequencies(config, head_size)
        angles = torch.arange(config.max_position_embeddings).float()[:, None] * frequencies
        self._cos = (angles.cos() * self._scale).to(like)
        self._sin = (angles.sin() * self._scale).to(like)

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines for all heads of each token."""
        return self._cos[positions][:, None], self._sin[positions][:, None]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first half of each head's features against the second."""
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)


def _frequencies(config: Any, head_size: int) -> tuple[Tensor, float]:
    """The rotations' frequencies, stretched for long contexts as the checkpoint says."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = config.rope_parameters
    kind = rope["rope_type"]
    if kind != "default":
        frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
        return frequencies, float(scale)
    exponents = torch.arange(0, head_size, 2, dtype=torch.float) / head_size
    return 1.0 / (rope["rope_theta"] ** exponents), 1.0


def _windows(config: Any) -> tuple[int | None, ...]:
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return (window,) * int(config.num_hidden_layers)
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
