"""How does an architecture that is not written here run in the engine?

Through transformers' own modules, with one thing exchanged: their attention asks ours, so that
packed tokens, paged keys and values, shared prefixes and preemption are the same for them.
Slower, since their modules make more and smaller products, and none of them is arranged for the
CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from wherry.errors import ConfigError
from wherry.llm.attention import Attention, Span, StepInputs
from wherry.llm.checkpoint import DTYPES, Checkpoint
from wherry.llm.linear import Linear, MakeLinear
from wherry.llm.model import Shape


class TransformersNetwork:
    """A decoder of transformers whose attention is the engine's."""

    def __init__(self, checkpoint: Checkpoint, *, dtype: str, device: torch.device) -> None:
        from transformers import AttentionInterface, AutoModelForCausalLM

        # transformers keeps attention functions by name, in one table for the process.
        name = f"wherry-{id(self):x}"
        AttentionInterface.register(name, self._attend)
        net: Any = AutoModelForCausalLM.from_pretrained(
            checkpoint.folder,
            dtype=DTYPES[dtype],
            local_files_only=True,
            attn_implementation=name,
        )
        self._net = net.to(device).eval()
        try:
            self.shape = Shape.of(self._net.config)
        except AttributeError as error:
            raise ConfigError(
                f"{checkpoint.folder.name}: {type(self._net).__name__} cannot run in the engine:"
                f" it is no decoder with attention ({error})"
            ) from error
        self._now: tuple[StepInputs, Attention] | None = None
        self._attended = 0
        self._try(checkpoint.folder.name, DTYPES[dtype], device)

    def forward(self, step: StepInputs, attention: Attention) -> Tensor:
        self._now, self._attended = (step, attention), 0
        answer = self._net(
            input_ids=step.tokens[None],
            position_ids=step.positions[None],
            use_cache=False,
            logits_to_keep=step.asked,
        )
        logits: Tensor = answer.logits[0]
        return logits

    def exchange_products(self, linear: MakeLinear) -> None:
        """Have its linear layers multiplied otherwise. What a module multiplies by itself, such
        as the experts of a mixture, stays as it is."""
        from transformers.pytorch_utils import Conv1D

        for module in list(self._net.modules()):
            for name, child in list(module.named_children()):
                if type(child) is torch.nn.Linear:
                    weight = child.weight.data
                elif type(child) is Conv1D:  # GPT-2's word for it
                    weight = child.weight.data.T.contiguous()
                else:
                    continue
                bias = None if child.bias is None else child.bias.data
                setattr(module, name, _Product(linear(weight, bias)))

    def _attend(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        **options: Any,
    ) -> tuple[Tensor, None]:
        """In transformers' place: [1, heads, tokens, features] in, [1, tokens, heads, features]
        out."""
        assert self._now is not None
        if options.get("softcap"):
            raise ConfigError("attention with soft caps is not supported")
        step, attention = self._now
        self._attended += 1
        q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
        size = q.shape[-1]
        if scaling is not None:  # ours is the usual one
            q = q * (scaling * size**0.5)
        window = options.get("sliding_window") or getattr(module, "sliding_window", None)
        out = attention(module.layer_idx, q, k, v, step, window)
        return out.view(1, len(out), -1, size), None

    @torch.inference_mode()
    def _try(self, name: str, dtype: torch.dtype, device: torch.device) -> None:
        """Does each of its layers ask for attention as we know it? Others keep a state of their
        own, which nothing here would carry from step to step."""
        shape = self.shape
        attention = Attention(
            layers=shape.layers,
            kv_heads=shape.kv_heads,
            head_size=shape.head_size,
            tokens=2,
            dtype=dtype,
            device=device,
        )
        numbers = torch.arange(2, device=device)
        step = StepInputs(numbers, numbers, numbers, numbers[1:], [Span(0, 2, 2, [(0, 2)])])
        kind = type(self._net).__name__
        try:
            self.forward(step, attention)
        except (RuntimeError, TypeError, AttributeError, ConfigError) as error:
            raise ConfigError(f"{name}: {kind} cannot run in the engine: {error}") from error
        if self._attended != shape.layers:
            raise ConfigError(
                f"{name}: {kind} cannot run in the engine: only {self._attended} of its"
                f" {shape.layers} layers are attention"
            )


class _Product(torch.nn.Module):
    """One of our products in the place of a linear layer."""

    def __init__(self, run: Linear) -> None:
        super().__init__()
        self._run = run

    def forward(self, x: Tensor) -> Tensor:
        return self._run(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], -1)
