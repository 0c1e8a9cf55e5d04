"""How does an architecture that is not written here run in the engine?

Through transformers' own modules, with one thing exchanged: their attention asks ours, so that
packed tokens, paged keys and values, shared prefixes and preemption are the same for them.
Slower, since their modules make more and smaller products, and none of them is arranged for the
CPU.
"""

from __future__ import annotations

from math import prod
from typing import Any, Final

import torch
from torch import Tensor

from wherry.llm.attention import Attention, Context, StepInputs
from wherry.llm.checkpoint import DTYPES, MOST_REFUSALS, Checkpoint, refuse_unused
from wherry.llm.library_errors import brief
from wherry.llm.linear import Linear, MakeLinear
from wherry.llm.model import Shape
from wherry.values.errors import ConfigError

#: What transformers' modules tell an attention, beside what is off.
OPTIONS: Final = {"position_ids", "sliding_window", "use_cache"}


class TransformersNetwork:
    """A decoder of transformers whose attention is the engine's."""

    def __init__(self, checkpoint: Checkpoint, *, dtype: str, device: torch.device) -> None:
        from transformers import AttentionInterface, AutoModelForCausalLM

        # transformers keeps attention functions by name, in one table for the process.
        name = f"wherry-{id(self):x}"
        AttentionInterface.register(name, self._attend)
        config = checkpoint.config()
        self.shape = Shape.of(config)
        load: Any = AutoModelForCausalLM.from_pretrained
        try:
            _check_size(checkpoint, config)
            net, found = load(
                checkpoint.folder,
                dtype=DTYPES[dtype],
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                attn_implementation=name,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # refused below, by their names
            )
        except ConfigError:
            raise
        except Exception as error:  # shapes that do not fit, and what else foreign files bring
            raise ConfigError(
                f"{checkpoint.folder.name}: not loaded by transformers: {brief(error)}"
            ) from error
        if missing := sorted({*found["missing_keys"], *(m[0] for m in found["mismatched_keys"])}):
            raise ConfigError(
                f"{checkpoint.folder.name}: {len(missing)} tensors are missing, or have another"
                f" shape: {', '.join(missing[:MOST_REFUSALS])}: download the checkpoint again"
            )
        refuse_unused(checkpoint.folder.name, list(found["unexpected_keys"]))
        self._net: Any = net.to(device).eval()
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
        if unknown := [
            n for n, v in options.items() if n not in OPTIONS and v is not None and v is not False
        ]:
            raise ConfigError(f"its attention has {unknown[0]!r}, which is not computed here")
        step, attention = self._now
        self._attended += 1
        q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
        size = q.shape[-1]
        if scaling is not None:  # ours is the usual one
            q = q * (scaling * size**0.5)
        if "sliding_window" in options:  # None says that this layer sees all
            window = options["sliding_window"]
        else:
            window = getattr(module, "sliding_window", None)
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
        step = StepInputs(numbers, numbers, numbers, numbers[1:], [Context(0, 2, 2, [(0, 2)])])
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


def _check_size(checkpoint: Checkpoint, config: Any) -> None:
    """Refuse files whose number of weights is not about what config.json describes: transformers
    makes up those that are missing, and takes the memory for them."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        described = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    with checkpoint.tensors() as tensors:
        stored = sum(prod(file.get_slice(name).get_shape()) for name, file in tensors.items())
    if described > 2 * stored:
        raise ConfigError(
            f"{checkpoint.folder.name}: config.json describes {described} weights, its files hold"
            f" {stored}"
        )


class _Product(torch.nn.Module):
    """One of our products in the place of a linear layer."""

    def __init__(self, run: Linear) -> None:
        super().__init__()
        self._run = run

    def forward(self, x: Tensor) -> Tensor:
        return self._run(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], -1)
