"""How does a Llama-like decoder compute logits from tokens?

Llama (SmolLM, Mistral) and Qwen 2, 2.5 and 3: one forward pass over the packed tokens of all
sequences of a step, without padding. Attention, which is separate for each sequence, is passed in
(`Attends`); everything else is one matrix product for all tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from wherry.llm.engine.known import exact_positions
from wherry.llm.engine.linear import Linear, MakeLinear, smallest
from wherry.llm.engine.step_inputs import Attends, StepInputs

#: Returns a checkpoint's tensor by name and shape. ConfigError if there is none.
Weights = Callable[..., Tensor]

#: Maximum number of positions with precomputed rotations: 0.5 GB for heads of 128 features.
MOST_POSITIONS: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Shape:
    layers: int
    hidden: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    #: The longest context that is computed exactly as the checkpoint defines it.
    max_positions: int
    norm_eps: float
    #: Attention window of each layer in tokens; None: the whole context.
    windows: tuple[int | None, ...]

    @classmethod
    def of(cls, config: Any) -> Shape:
        heads = config.num_attention_heads
        return cls(
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            feed_forward=_widest(
                getattr(config, "intermediate_size", None), 4 * config.hidden_size
            ),
            heads=heads,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
            vocabulary=config.vocab_size,
            max_positions=min(
                config.max_position_embeddings, exact_positions(config) or MOST_POSITIONS
            ),
            norm_eps=getattr(config, "rms_norm_eps", 1e-6),
            windows=_windows(config),
        )


@dataclass(frozen=True, slots=True)
class Parts:
    qkv_bias: bool
    output_bias: bool
    feed_forward_bias: bool
    head_norms: bool

    @classmethod
    def of(cls, config: Any) -> Parts:
        bias = bool(getattr(config, "attention_bias", False))
        return cls(
            qkv_bias=bias or config.model_type == "qwen2",
            output_bias=bias,
            feed_forward_bias=bool(getattr(config, "mlp_bias", False)),
            head_norms=config.model_type == "qwen3",
        )


class Decoder:
    """The whole model: embedding, layers, head.

    With `first_step` each layer is computed once as soon as it is loaded. Layers that quantize on
    their first call then never hold all their float weights at the same time.
    """

    def __init__(
        self,
        config: Any,
        weights: Weights,
        linear: MakeLinear,
        first_step: tuple[StepInputs, Attends] | None = None,
    ) -> None:
        self.shape = shape = Shape.of(config)
        parts = Parts.of(config)
        embedding = head = weights("model.embed_tokens.weight", shape.vocabulary, shape.hidden)
        self.embedding = smallest(embedding)
        self.norm = weights("model.norm.weight", shape.hidden)
        self.rotary = Rotary(config, shape.head_size, shape.max_positions, self.norm)
        if not config.tie_word_embeddings:
            head = weights("lm_head.weight", shape.vocabulary, shape.hidden)
        self.head = linear(head, None)
        self.layers: list[Layer] = []

        def reading() -> Iterator[Layer]:
            for number in range(shape.layers):
                self.layers.append(Layer(shape, parts, weights, f"model.layers.{number}.", linear))
                yield self.layers[-1]

        if first_step is None:
            list(reading())
        else:
            self._pass(*first_step, reading())

    def forward(self, step: StepInputs, attention: Attends) -> Tensor:
        """The logits [rows, vocabulary] of the rows that the step requests."""
        return self._pass(step, attention, self.layers)

    def _pass(self, step: StepInputs, attention: Attends, layers: Iterable[Layer]) -> Tensor:
        x = F.embedding(step.tokens, self.embedding).to(self.norm.dtype)
        cos, sin = self.rotary(step.positions)
        for number, layer in enumerate(layers):
            x = layer.forward(x, cos, sin, step, attention, number)
        x = x.index_select(0, step.logit_rows)
        return self.head(rms_norm(x, self.norm, self.shape.norm_eps))


class Layer:
    """A transformer layer: attention, then the gated feed-forward network, each with a residual
    connection."""

    def __init__(
        self, shape: Shape, parts: Parts, weights: Weights, name: str, linear: MakeLinear
    ) -> None:
        hidden, size = shape.hidden, shape.head_size
        queries, keys, inner = shape.heads * size, shape.kv_heads * size, shape.feed_forward

        def joined(columns: int, bias: bool, rows: dict[str, int]) -> Linear:
            """Concatenate several linear layers with the same input: `rows` has their names and
            output sizes."""
            weight = [weights(f"{name}{n}.weight", count, columns) for n, count in rows.items()]
            biases = [weights(f"{name}{n}.bias", count) for n, count in rows.items() if bias]
            return linear(torch.cat(weight), torch.cat(biases) if bias else None)

        self.shape = shape
        self.attention_norm = weights(name + "input_layernorm.weight", hidden)
        self.qkv = joined(
            hidden,
            parts.qkv_bias,
            {"self_attn.q_proj": queries, "self_attn.k_proj": keys, "self_attn.v_proj": keys},
        )
        self.head_norms: list[Tensor] = []
        if parts.head_norms:
            norms = ("self_attn.q_norm.weight", "self_attn.k_norm.weight")
            self.head_norms = [weights(name + norm, size) for norm in norms]
        self.output = joined(queries, parts.output_bias, {"self_attn.o_proj": hidden})
        self.mlp_norm = weights(name + "post_attention_layernorm.weight", hidden)
        bias = parts.feed_forward_bias
        self.gate_up = joined(hidden, bias, {"mlp.gate_proj": inner, "mlp.up_proj": inner})
        self.down = joined(inner, bias, {"mlp.down_proj": hidden})

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        step: StepInputs,
        attention: Attends,
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
    """Rotary position embedding: cosines and sines, computed once for every position."""

    def __init__(self, config: Any, head_size: int, positions: int, like: Tensor) -> None:
        frequencies, self._scale = _frequencies(config, head_size)
        angles = torch.arange(positions).float()[:, None] * frequencies
        self._cos = (angles.cos() * self._scale).to(like)
        self._sin = (angles.sin() * self._scale).to(like)

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The factors of each feature of a head at these positions, and of the feature that it is
        rotated against, to be broadcast over heads."""
        cos, sin = self._cos[positions][:, None], self._sin[positions][:, None]
        return torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.addcmul(x * cos, torch.cat([second, first], -1), sin)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)


def _frequencies(config: Any, head_size: int) -> tuple[Tensor, float]:
    """The rotary frequencies, scaled for long contexts as config.json sets, and the attention
    factor."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = config.rope_parameters
    kind = rope["rope_type"]
    if kind != "default":
        frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
        return frequencies, float(scale)
    exponents = torch.arange(0, head_size, 2, dtype=torch.float) / head_size
    return 1.0 / (rope["rope_theta"] ** exponents), 1.0


def _widest(sizes: int | list[int] | None, default: int) -> int:
    """The largest size of a layer: Gemma 3n has one for each layer, others one for all."""
    return (max(sizes) if isinstance(sizes, list | tuple) else sizes) or default


def _windows(config: Any) -> tuple[int | None, ...]:
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return (window,) * int(config.num_hidden_layers)
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
