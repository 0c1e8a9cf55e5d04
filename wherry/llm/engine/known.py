"""Does wherry's own decoder compute what this config.json says exactly, and if not, which field is
the reason?

Only the fields that are listed here are accepted: an unknown one may affect every token. Any other
architecture runs by transformers' modules, whose logits are compared when it is loaded. Pure: takes
the parsed file, returns refusals.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeGuard


@dataclass(frozen=True, slots=True)
class Whole:
    least: int
    most: int
    or_null: bool = False


@dataclass(frozen=True, slots=True)
class Number:
    least: float
    most: float
    or_null: bool = False


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of these values, with the same type."""

    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ForEachLayer:
    """A list with one of these values for each layer, or null."""

    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Factors:
    """A list of positive numbers."""


Rule = Whole | Number | OneOf | ForEachLayer | Factors

_FLAG: Final = OneOf((True, False))
_POSITIONS: Final = Whole(1, 1 << 24)
_THETA: Final = Number(1.0, 1e12)
#: Of every architecture here. Bounds are several times those of any published decoder: a file
#: beyond them is damaged or hostile, and building its modules would take all memory.
_LLAMA: Final[Mapping[str, Rule]] = {
    "vocab_size": Whole(1, 1 << 24),
    "hidden_size": Whole(1, 1 << 20),
    "intermediate_size": Whole(1, 1 << 20),
    "num_hidden_layers": Whole(1, 512),
    "num_attention_heads": Whole(1, 4096),
    "num_key_value_heads": Whole(1, 4096, or_null=True),
    "head_dim": Whole(2, 4096, or_null=True),
    "hidden_act": OneOf(("silu",)),
    "max_position_embeddings": _POSITIONS,
    "tie_word_embeddings": _FLAG,
    "rms_norm_eps": Number(0.0, 1.0),
    "rope_theta": _THETA,
}
_WINDOW: Final[Mapping[str, Rule]] = {"sliding_window": Whole(1, 1 << 24, or_null=True)}
_QWEN_WINDOWS: Final[Mapping[str, Rule]] = {
    **_WINDOW,
    "use_sliding_window": _FLAG,
    "max_window_layers": Whole(0, 1 << 24),
    "layer_types": ForEachLayer(("full_attention", "sliding_attention")),
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder that model.py computes, and the fields that its config.json may have."""

    model_type: str
    fields: Mapping[str, Rule]


#: By the name in the field "architectures". `tests/unit/llm/engine/test_exact.py` holds each to the
#: logits of transformers.
ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "LlamaForCausalLM": Architecture(
        "llama", {**_LLAMA, "attention_bias": _FLAG, "mlp_bias": _FLAG}
    ),
    "MistralForCausalLM": Architecture("mistral", {**_LLAMA, **_WINDOW}),
    "Qwen2ForCausalLM": Architecture("qwen2", {**_LLAMA, **_QWEN_WINDOWS}),
    "Qwen3ForCausalLM": Architecture("qwen3", {**_LLAMA, "attention_bias": _FLAG, **_QWEN_WINDOWS}),
}

#: Fields that do not affect the logits: names, ids, training options, defaults of generate().
_WITHOUT_EFFECT: Final = """
    _name_or_path _model_name_or_path _commit_hash name_or_path transformers_version
    architectures model_type
    torch_dtype dtype use_cache gradient_checkpointing keys_to_ignore_at_inference
    initializer_range init_std pretraining_tp
    attention_dropout hidden_dropout classifier_dropout embd_pdrop resid_pdrop attn_pdrop dropout
    hidden_dropout_prob attention_probs_dropout_prob
    embedding_dropout residual_dropout activation_dropout layerdrop
    router_aux_loss_coef router_jitter_noise aux_loss_alpha seq_aux
    summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj
    bos_token_id eos_token_id pad_token_id sep_token_id unk_token_id eod_token_id
    decoder_start_token_id forced_bos_token_id forced_eos_token_id
    id2label label2id num_labels problem_type finetuning_task task_specific_params
    _num_labels tokenizer_class prefix use_return_dict unsloth_version unsloth_fixed
    transformers.js_config model_max_length cache_implementation
    inference_runner pad_key_length pre_allocate_kv_cache validate_runner_input
    bad_words_ids begin_suppress_tokens diversity_penalty do_sample early_stopping
    encoder_no_repeat_ngram_size exponential_decay_length_penalty length_penalty max_length
    min_length no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_scores
    remove_invalid_values repetition_penalty return_dict_in_generate suppress_tokens temperature
    top_k top_p typical_p
"""

#: Fields that may have only these values; null means absent.
_FIXED: Final[Mapping[str, tuple[Any, ...]]] = {
    "is_encoder_decoder": (False,),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "tie_encoder_decoder": (False,),
    "chunk_size_feed_forward": (0,),
    "output_attentions": (False,),
    "output_hidden_states": (False,),
    "output_router_logits": (False,),
    "return_dict": (True,),
    "torchscript": (False,),
    "use_bfloat16": (False,),
    "use_mrope": (False,),
    "rope_interleaved": (False,),
    "is_llama_config": (True,),
    "pruned_heads": ({},),
}

#: For each type of rotary scaling: required fields, optional fields.
_ROPE_FIELDS: Final[Mapping[str, tuple[frozenset[str], frozenset[str]]]] = {
    kind: (frozenset(needed.split()), frozenset(further.split()))
    for kind, needed, further in (
        ("default", "", ""),
        ("linear", "factor", ""),
        ("dynamic", "factor", ""),
        (
            "yarn",
            "factor",
            "original_max_position_embeddings attention_factor beta_fast beta_slow mscale"
            " mscale_all_dim truncate",
        ),
        ("llama3", "factor low_freq_factor high_freq_factor original_max_position_embeddings", ""),
        (
            "longrope",
            "short_factor long_factor",
            "factor original_max_position_embeddings attention_factor",
        ),
    )
}
_ROPE_RULES: Final[Mapping[str, Rule]] = {
    "factor": Number(1.0, 1e6),
    "low_freq_factor": Number(1e-6, 1e6),
    "high_freq_factor": Number(1e-6, 1e6),
    "original_max_position_embeddings": _POSITIONS,
    "attention_factor": Number(1e-6, 1e6, or_null=True),
    "beta_fast": Number(1e-6, 1e6, or_null=True),
    "beta_slow": Number(1e-6, 1e6, or_null=True),
    "mscale": Number(1e-6, 1e6, or_null=True),
    "mscale_all_dim": Number(1e-6, 1e6, or_null=True),
    "truncate": _FLAG,
    "short_factor": Factors(),
    "long_factor": Factors(),
    "rope_theta": _THETA,
}

DTYPES = ("float32", "bfloat16", "float16")
#: Fields of quantized weights. Others of this kind are refused as unknown.
QUANTIZED = ("quantization_config", "compression_config", "quantization")
#: Those of other programs: transformers does not look at them.
QUANTIZER_FILES = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")
ANOTHER_ENGINE = "serve it with another engine (vllm:..., llama-cpp:FILE.gguf)"
#: Characters of a value in a message.
_SHOWN = 80
#: The arguments of an UnsupportedField: field, value, remedy.
_Refusal = tuple[str, Any, str]


@dataclass(frozen=True, slots=True)
class UnsupportedField:
    """A field of config.json that the engine does not compute, and the remedy."""

    field: str
    value: Any
    remedy: str

    def __str__(self) -> str:
        shown = repr(self.value)
        if len(shown) > _SHOWN:
            shown = f"{shown[:_SHOWN]}..."
        return f"{self.field} = {shown}: {self.remedy}"


def refusals(config: Mapping[str, Any]) -> list[UnsupportedField]:
    """The fields of a config.json that are not computed exactly; empty if the checkpoint may be
    loaded."""
    return [UnsupportedField(*one) for one in _refusals(config)]


def exact_positions(config: Any) -> int | None:
    """The longest context whose rotary embeddings equal those of transformers; None: any.

    "longrope" changes the rotations of all keys, cached ones included, when a sequence exceeds the
    original context. Up to there they are fixed.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        return int(rope["original_max_position_embeddings"])
    return None


def _refusals(config: Mapping[str, Any]) -> Iterator[_Refusal]:
    for name in QUANTIZED:
        if config.get(name) is not None:
            yield (
                name,
                config[name],
                "quantized weights are not computed here; use a checkpoint of floats"
                f" (float32, bfloat16 or float16), or {ANOTHER_ENGINE}",
            )
    if config.get("auto_map") is not None:
        yield (
            "auto_map",
            config["auto_map"],
            "the checkpoint brings code of its own, which is never run; if it only repeats what"
            " transformers has for this model_type, delete the field",
        )
    kinds = config.get("architectures")
    kind = kinds[0] if isinstance(kinds, list) and len(kinds) == 1 else None
    known = ARCHITECTURES.get(kind) if isinstance(kind, str) else None
    if known is None:
        yield (
            "architectures",
            kinds,
            f"not computed by a decoder of ours; use engine transformers, or {ANOTHER_ENGINE}",
        )
        return
    if config.get("model_type") != known.model_type:
        yield ("model_type", config.get("model_type"), f"of {kind} is {known.model_type!r}")
    for name in ("dtype", "torch_dtype"):
        if config.get(name) not in (None, *DTYPES):
            yield (name, config[name], f"must be one of {', '.join(DTYPES)}")
    for name, value in config.items():
        yield from _field(name, value, known, config)
    yield from _shapes(config)
    yield from _ropes(config)


def _field(
    name: str, value: Any, known: Architecture, config: Mapping[str, Any]
) -> Iterator[_Refusal]:
    if name in _WITHOUT_EFFECT.split() or name in QUANTIZED or name == "auto_map":
        return
    if name in ("rope_scaling", "rope_parameters"):
        return  # checked as a whole by _ropes
    if name in known.fields:
        if problem := _problem(known.fields[name], value, config):
            yield (name, value, problem)
    elif value is None:
        return  # null, where transformers has no default either
    elif name not in _FIXED:
        yield (
            name,
            value,
            f"not known for {known.model_type!r}, so it would be ignored; {ANOTHER_ENGINE}, or"
            " delete the field if you are sure that it does not change what is computed",
        )
    elif not any(_same(value, allowed) for allowed in _FIXED[name]):
        yield (name, value, f"only {_FIXED[name][0]!r} is computed here; {ANOTHER_ENGINE}")


def _shapes(config: Mapping[str, Any]) -> Iterator[_Refusal]:
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    kv_heads, head_dim = config.get("num_key_value_heads"), config.get("head_dim")
    if _whole(heads) and _whole(kv_heads) and kv_heads and heads % kv_heads:
        yield ("num_key_value_heads", kv_heads, f"must divide num_attention_heads ({heads})")
    if _whole(heads) and _whole(hidden) and head_dim is None and heads and hidden % heads:
        yield ("num_attention_heads", heads, f"must divide the hidden size ({hidden})")
    if _whole(head_dim) and head_dim % 2:
        yield ("head_dim", head_dim, "must be even")
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and "sliding_attention" in kinds:
        if "sliding_window" in config and config["sliding_window"] is None:
            yield ("layer_types", kinds, "has sliding_attention, but sliding_window is null")
        if config.get("use_sliding_window") is False:
            yield ("layer_types", kinds, "has sliding_attention, but use_sliding_window is false")


def _ropes(config: Mapping[str, Any]) -> Iterator[_Refusal]:
    present = [n for n in ("rope_scaling", "rope_parameters") if config.get(n) is not None]
    if not present:
        return
    name = present[0]
    rope = config[name]
    if len(present) > 1:
        yield (name, rope, "there is rope_parameters, too: delete one of them")
        return
    if not isinstance(rope, dict):
        yield (name, rope, "must be an object")
        return
    kind = rope.get("rope_type", rope.get("type", "default"))
    if rope.get("type", kind) != kind:
        yield (f"{name}.type", rope["type"], f"rope_type says {kind!r}: delete one of them")
        return
    if not isinstance(kind, str) or kind not in _ROPE_FIELDS:
        known = ", ".join(_ROPE_FIELDS)
        yield (f"{name}.rope_type", kind, f"must be one of {known}; {ANOTHER_ENGINE}")
        return
    needed, further = _ROPE_FIELDS[kind]
    fields = needed | further | {"rope_type", "type", "rope_theta"}
    yield from _factors(name, rope, config)
    for field in sorted(needed - rope.keys()):
        yield (f"{name}.{field}", None, f"rope_type {kind!r} needs it")
    for field, value in rope.items():
        if field not in fields:
            yield (f"{name}.{field}", value, f"not known for rope_type {kind!r}; {ANOTHER_ENGINE}")
        elif field not in ("rope_type", "type"):
            if problem := _problem(_ROPE_RULES[field], value, config):
                yield (f"{name}.{field}", value, problem)
            elif config.get(field, value) != value:
                yield (
                    f"{name}.{field}",
                    value,
                    f"{field} beside it is {config[field]!r}: delete one",
                )


def _factors(name: str, rope: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[_Refusal]:
    low, high = rope.get("low_freq_factor"), rope.get("high_freq_factor")
    if _number(low) and _number(high) and low >= high:
        yield (f"{name}.high_freq_factor", high, f"must be above low_freq_factor ({low})")
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    size = config.get("head_dim")
    if size is None and _whole(heads) and _whole(hidden) and heads:
        size = hidden // heads
    for field in ("short_factor", "long_factor"):
        factors = rope.get(field)
        if isinstance(factors, list) and _whole(size) and len(factors) != size // 2:
            yield (f"{name}.{field}", factors, f"must have {size // 2} numbers, one a pair")


def _problem(rule: Rule, value: Any, config: Mapping[str, Any]) -> str:
    match rule:
        case Whole(least, most, or_null):
            fine = (value is None and or_null) or (_whole(value) and least <= value <= most)
            return "" if fine else f"must be a whole number from {least} to {most}"
        case Number(least, most, or_null):
            fine = (value is None and or_null) or (_number(value) and least <= value <= most)
            return "" if fine else f"must be a number from {least:g} to {most:g}"
        case OneOf(values):
            fine = any(_same(value, allowed) for allowed in values)
            return "" if fine else f"must be {' or '.join(map(repr, values))}; {ANOTHER_ENGINE}"
        case Factors():
            fine = isinstance(value, list) and all(_number(v) and 1e-3 <= v <= 1e6 for v in value)
            return "" if fine else "must be a list of numbers from 0.001 to 1e+06"
        case ForEachLayer(values):
            if value is None:
                return ""
            layers = config.get("num_hidden_layers")
            if not isinstance(value, list) or len(value) != layers:
                return f"must be a list with one entry for each of {layers} layers"
            odd = [v for v in value if not any(_same(v, allowed) for allowed in values)]
            return f"{odd[0]!r} in it is not computed here; {ANOTHER_ENGINE}" if odd else ""


def _same(value: Any, allowed: Any) -> bool:
    """Compare with types: JSON's true is not 1."""
    return type(value) is type(allowed) and bool(value == allowed)


def _whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
