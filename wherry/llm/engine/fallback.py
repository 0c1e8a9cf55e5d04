"""How does an architecture that wherry does not implement run in the engine?

Through transformers' modules with wherry's attention in place of theirs, so that packed tokens, the
paged KV cache, prefix caching and preemption work the same. It is slower: these modules do more and
smaller products, without the layout for CPUs.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from math import prod
from typing import Any, Final

import torch
from torch import Tensor

from wherry.core.api import ConfigError, InvalidRequest
from wherry.llm.engine.attention import Attention
from wherry.llm.engine.checkpoint import FLOATS, INDICES, MOST_REFUSALS, Checkpoint
from wherry.llm.engine.damaged import brief
from wherry.llm.engine.linear import Linear, MakeLinear
from wherry.llm.engine.lora import AdaptedLinear, Pair
from wherry.llm.engine.model import Shape
from wherry.llm.engine.step_inputs import Attends, Context, StepInputs
from wherry.llm.engine.weights import DTYPES, move, refuse_unused

log = logging.getLogger("wherry")

OTHER: Final = "serve it with vllm:..."
#: Loggers to which quantizers write at each product of each step.
LOUD: Final = ("bitsandbytes.autograd._functions",)
#: Tokens of the text on which the logits are compared.
SAMPLE_TOKENS: Final = 48
#: How far logits may differ, as a part of the largest.
TOLERANCE: Final = {torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 1e-2}
#: Options that transformers' modules may pass to attention with any value.
OPTIONS: Final = {"position_ids", "sliding_window", "use_cache"}
#: Kinds of layers, as configurations name them, that the engine's attention computes.
KINDS: Final = {"full_attention", "sliding_attention"}


class AttentionDiffers(ConfigError):
    """A model of transformers does more than the engine's attention computes."""


class TransformersNetwork:
    """A decoder of transformers that uses the engine's attention.

    It may be of any architecture, and quantized. Its logits are compared with those of
    transformers' own attention once, and it is refused if they differ.
    """

    def __init__(self, checkpoint: Checkpoint, *, dtype: str, device: torch.device) -> None:
        from transformers import AttentionInterface

        # transformers keeps attention functions in one table for the process.
        name = f"wherry-{id(self):x}"
        AttentionInterface.register(name, self._attend)
        config = checkpoint.config(exact=False)
        try:
            self.shape = Shape.of(config.get_text_config())
        except Exception as error:  # of any type: its fields have other names or meanings
            raise AttentionDiffers(
                f"{checkpoint.folder.name}: no attention that is known: {brief(error)}"
            ) from error
        self._net = load_net(checkpoint, config, dtype=dtype, device=device, attention=name)
        self._now: tuple[StepInputs, Attends] | None = None
        self._attended = 0
        self._adapted: dict[str, AdaptedLinear] = {}
        # A short text would not show their difference, as of attention within chunks.
        kinds = getattr(config.get_text_config(), "layer_types", None) or ()
        if other := sorted({str(kind) for kind in kinds} - KINDS):
            layers = ", ".join(other)[:80]
            raise AttentionDiffers(f"{checkpoint.folder.name}: its layers are {layers}")
        self._compare(checkpoint.folder.name, name, DTYPES[dtype], device)

    def forward(self, step: StepInputs, attention: Attends) -> Tensor:
        self._now, self._attended = (step, attention), 0
        answer = self._net(
            input_ids=step.tokens[None],
            position_ids=step.positions[None],
            use_cache=False,
            logits_to_keep=step.logit_rows,
        )
        logits: Tensor = answer.logits[0]
        return logits

    def adapt(self, key: str, pairs: Mapping[str, Pair] | None) -> None:
        """Set an adapter's matrices by the names of the modules, or remove it. ConfigError if one
        does not fit its module."""
        if pairs is None:
            for module in self._adapted.values():
                module.pairs.pop(key, None)
            return
        for name, (down, up) in pairs.items():
            wide = self._adaptable(name)
            if (up.shape[0], down.shape[1]) != wide:
                raise InvalidRequest(
                    f"adapter {key.partition(' ')[0]}: {name}: a layer of {wide[1]} to {wide[0]}"
                    f" features, and its matrices are for {down.shape[1]} to {up.shape[0]}",
                    field="adapter",
                )
        for name, pair in pairs.items():
            self._adapted[name].pairs[key] = pair

    def _adaptable(self, name: str) -> tuple[int, int]:
        """The features out of and into a linear layer, which takes adapters from now on."""
        if name not in self._adapted:
            try:
                base = self._net.get_submodule(name)
            except AttributeError:
                base = None
            if not hasattr(base, "in_features") or "expert" in name:
                raise InvalidRequest(
                    f"the model has no linear layer {name[:80]!r} for adapters", field="adapter"
                )
            self._adapted[name] = AdaptedLinear(
                base, lambda: {} if self._now is None else self._now[0].adapters
            )
            self._net.set_submodule(name, self._adapted[name])
        base = self._adapted[name].base
        return base.out_features, base.in_features

    def exchange_products(self, linear: MakeLinear) -> None:
        """Replace its linear layers by those that `linear` makes. Products that a module computes
        itself, such as a mixture's experts, stay."""
        from transformers.pytorch_utils import Conv1D

        for module in list(self._net.modules()):
            for name, child in list(module.named_children()):
                if type(child) is torch.nn.Linear:
                    weight = child.weight.data
                elif type(child) is Conv1D:  # the linear layer of GPT-2
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
        """The attention function that transformers calls: [1, heads, tokens, features] in, [1,
        tokens, heads, features] out."""
        assert self._now is not None
        if unknown := [
            n for n, v in options.items() if n not in OPTIONS and v is not None and v is not False
        ]:
            raise ConfigError(f"its attention has {unknown[0]!r}, which is not computed here")
        step, attention = self._now
        self._attended += 1
        q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
        size = q.shape[-1]
        if scaling is not None:  # None: the default, as ours
            q = q * (scaling * size**0.5)
        if "sliding_window" in options:  # None: this layer has no window
            window = options["sliding_window"]
        else:
            window = getattr(module, "sliding_window", None)
        out = attention(module.layer_idx, q, k, v, step, window)
        return out.view(1, len(out), -1, size), None

    @torch.inference_mode()
    def _compare(self, name: str, ours: str, dtype: torch.dtype, device: torch.device) -> None:
        """Raise AttentionDiffers unless each layer calls attention (one with a state of its own
        would lose it after the step), and a text in two pieces gives the logits that
        transformers' own attention gives for it as a whole."""
        tokens = min(SAMPLE_TOKENS, self.shape.max_positions)
        half = tokens // 2
        numbers = torch.arange(tokens, device=device)
        sample = (numbers * 7919 + 11) % self.shape.vocabulary
        attention = Attention(self.shape, tokens, dtype, device)
        found: list[Tensor] = []
        kind = type(self._net).__name__
        for begin, end in ((0, half), (half, tokens)):
            piece, rows = numbers[begin:end], numbers[: end - begin]
            context = Context(0, end - begin, end, [(0, end)])
            step = StepInputs(sample[begin:end], piece, piece, rows, [context])
            try:
                found.append(self.forward(step, attention))
            except Exception as error:  # of any type, by what its layers do
                problem = f"{name}: {kind} cannot run in the engine: {error}"
                raise AttentionDiffers(problem) from error
            if self._attended != self.shape.layers:
                raise AttentionDiffers(
                    f"{name}: {kind} cannot run in the engine: only {self._attended} of its"
                    f" {self.shape.layers} layers are attention"
                )
        try:
            self._net.set_attn_implementation("eager")
            expected = self._net(input_ids=sample[None], use_cache=False).logits[0].float()
        except Exception as error:  # of any type, by what its layers do
            raise AttentionDiffers(f"{name}: {kind} cannot be compared: {brief(error)}") from error
        finally:
            self._net.set_attn_implementation(ours)
        off = (torch.cat(found).float() - expected).abs().max() / expected.abs().max()
        if not off <= TOLERANCE[dtype]:
            raise AttentionDiffers(
                f"{name}: {kind} cannot run in the engine: with its attention the logits"
                f" differ from transformers' by {off:.2g} of the largest; {OTHER}"
            )


def load_net(
    checkpoint: Checkpoint,
    config: Any,
    *,
    dtype: str,
    device: torch.device,
    attention: str | None = None,
) -> Any:
    """transformers' module with a checkpoint's weights, quantized as its files declare.

    `attention` is the name of the attention function, or None for transformers' choice. Blocks.
    ConfigError if weights are missing or have another shape, or if some of a layer are not used;
    AttentionDiffers if the module cannot be made with this attention.
    """
    from transformers import AutoModelForCausalLM

    load: Any = AutoModelForCausalLM.from_pretrained
    declared = getattr(config, "quantization_config", None)
    quantized = declared is not None
    for logger in LOUD:
        logging.getLogger(logger).setLevel(logging.ERROR)
    name = checkpoint.folder.name
    try:
        if quantized:
            _check_quantizer(name, declared)
        else:
            _check_size(checkpoint, config)
        net, found = load(
            checkpoint.folder,
            dtype=DTYPES[dtype],
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            attn_implementation=attention,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused below, by their names
            # Quantizers place weights themselves, and may not let them be moved.
            **({"device_map": {"": str(device)}} if quantized else {}),
        )
    except ConfigError:
        raise
    except Exception as error:  # of many types: mismatched shapes, invalid files
        refusal = ConfigError if attention is None else AttentionDiffers
        raise refusal(f"{name}: not loaded by transformers: {brief(error)}") from error
    _check_tensors(name, found, None if quantized else net)
    if not quantized:
        move(net, device)
    return net.eval()


def _check_quantizer(name: str, declared: Any) -> None:
    """Refuse a method that transformers does not know: it would take the weights for floats."""
    from transformers.quantizers.auto import AutoHfQuantizer

    if not AutoHfQuantizer.supports_quant_method(declared):
        method = str(declared.get("quant_method"))[:40]
        raise ConfigError(
            f"{name}: quantization_config: quant_method = {method!r}: transformers has no quantizer"
            f" of this name, and would take the weights for floats; {OTHER}"
        )


def _check_tensors(name: str, found: Mapping[str, Any], net: Any) -> None:
    """Check what transformers reports of a checkpoint's tensors. Unused ones may be of parts that
    `net` does not have (a tower for images), not of its own layers (a scale of weights)."""
    if missing := sorted({*found["missing_keys"], *(m[0] for m in found["mismatched_keys"])}):
        raise ConfigError(
            f"{name}: {len(missing)} tensors are missing, or have another shape:"
            f" {', '.join(missing[:MOST_REFUSALS])}: download the checkpoint again"
        )
    unused = sorted(found["unexpected_keys"])
    refuse_unused(name, [key for key in unused if _is_of_layer(net, key)])
    if unused:
        log.warning("tensors are not used", extra={"count": len(unused), "first": unused[0]})


def _is_of_layer(net: Any, key: str) -> bool:
    """Whether a tensor, by its name, belongs to a layer with weights of its own."""
    try:
        layer = net.get_submodule(key.rpartition(".")[0])
    except AttributeError:
        return False
    return next(layer.parameters(recurse=False), None) is not None


def _check_size(checkpoint: Checkpoint, config: Any) -> None:
    """Refuse files whose number of weights is far from what config.json describes: transformers
    would allocate and initialise the missing ones."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        described = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    with checkpoint.tensors((*FLOATS, *INDICES)) as tensors:
        stored = sum(prod(file.get_slice(name).get_shape()) for name, file in tensors.items())
    if described > 2 * stored:
        raise ConfigError(
            f"{checkpoint.folder.name}: config.json describes {described} weights, its files hold"
            f" {stored}"
        )


class _Product(torch.nn.Module):
    def __init__(self, run: Linear) -> None:
        super().__init__()
        self._run = run

    def forward(self, x: Tensor) -> Tensor:
        return self._run(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], -1)
