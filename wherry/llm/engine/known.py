"""Which fields of a config.json does wherry's own decoder not compute exactly?

Only the fields that are listed here are accepted: an unknown one may affect every token. Any other
architecture runs by transformers' modules, whose logits are compared when it is loaded. Pure: takes
the parsed file, returns refusals.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeGuard

import msgspec

# Bounds are several times those of any published decoder: a file beyond them is damaged or hostile,
# and building its modules would take all memory.
_Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
_Heads = Annotated[int, msgspec.Meta(ge=1, le=4096)]
_Many = Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
_Factor = Annotated[float, msgspec.Meta(ge=1.0, le=1e6)]
_Share = Annotated[float, msgspec.Meta(ge=1e-6, le=1e6)]
_Theta = Annotated[float, msgspec.Meta(ge=1.0, le=1e12)]
#: Of every architecture here: each field's type.
_LLAMA: Final[Mapping[str, Any]] = {
    "vocab_size": _Many,
    "hidden_size": _Size,
    "intermediate_size": _Size,
    "num_hidden_layers": Annotated[int, msgspec.Meta(ge=1, le=512)],
    "num_attention_heads": _Heads,
    "num_key_value_heads": _Heads | None,
    "head_dim": Annotated[int, msgspec.Meta(ge=2, le=4096)] | None,
    "max_position_embeddings": _Many,
    "tie_word_embeddings": bool,
    "rms_norm_eps": Annotated[float, msgspec.Meta(ge=0.0, le=1.0)],
    "rope_theta": _Theta,
}
_WINDOW: Final[Mapping[str, Any]] = {"sliding_window": _Many | None}
_QWEN_WINDOWS: Final[Mapping[str, Any]] = {
    **_WINDOW,
    "use_sliding_window": bool,
    "max_window_layers": Annotated[int, msgspec.Meta(ge=0, le=1 << 24)],
    "layer_types": list[Literal["full_attention", "sliding_attention"]] | None,
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder that model.py computes, and the fields that its config.json may have."""

    model_type: str
    fields: Mapping[str, Any]


#: By the name in the field "architectures". `tests/unit/llm/engine/test_exact.py` compares each
#: with the logits of transformers.
ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "LlamaForCausalLM": Architecture("llama", {**_LLAMA, "attention_bias": bool, "mlp_bias": bool}),
    "MistralForCausalLM": Architecture("mistral", {**_LLAMA, **_WINDOW}),
    "Qwen2ForCausalLM": Architecture("qwen2", {**_LLAMA, **_QWEN_WINDOWS}),
    "Qwen3ForCausalLM": Architecture("qwen3", {**_LLAMA, "attention_bias": bool, **_QWEN_WINDOWS}),
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

#: Fields that may have only this value; null means absent.
_FIXED: Final[Mapping[str, Any]] = {
    "hidden_act": "silu",
    "is_encoder_decoder": False,
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_encoder_decoder": False,
    "chunk_size_feed_forward": 0,
    "output_attentions": False,
    "output_hidden_states": False,
    "output_router_logits": False,
    "return_dict": True,
    "torchscript": False,
    "use_bfloat16": False,
    "use_mrope": False,
    "rope_interleaved": False,
    "is_llama_config": True,
    "pruned_heads": {},
}


class _Rope(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="rope_type"):
    """How rotary embeddings are scaled: the types of which transformers makes the frequencies."""

    rope_theta: _Theta | None = None


class _Default(_Rope, tag="default"):
    pass


class _Linear(_Rope, tag="linear"):
    factor: _Factor


class _Dynamic(_Linear, tag="dynamic"):
    pass


class _Yarn(_Linear, tag="yarn"):
    original_max_position_embeddings: _Many | None = None
    attention_factor: _Share | None = None
    beta_fast: _Share | None = None
    beta_slow: _Share | None = None
    mscale: _Share | None = None
    mscale_all_dim: _Share | None = None
    truncate: bool = True


class _Llama3(_Linear, tag="llama3"):
    low_freq_factor: _Share
    high_freq_factor: _Share
    original_max_position_embeddings: _Many


_AnyRope = _Default | _Linear | _Dynamic | _Yarn | _Llama3

DTYPES = ("float32", "bfloat16", "float16")
#: Fields of quantized weights. Others of this kind are refused as unknown.
QUANTIZED = ("quantization_config", "compression_config", "quantization")
#: Those of other programs: transformers does not look at them.
QUANTIZER_FILES = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")
ANOTHER_ENGINE = "serve it with another engine (vllm:..., llama-cpp:FILE.gguf)"
#: Characters of a value in a message.
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class UnsupportedField:
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
    return [*_refusals(config)]


def exact_positions(config: Any) -> int | None:
    """The longest context whose rotary embeddings equal those of transformers; None: any.

    "longrope" changes the rotations of all keys, cached ones included, when a sequence exceeds the
    original context. Up to there they are fixed.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        return int(rope["original_max_position_embeddings"])
    return None


def _refusals(config: Mapping[str, Any]) -> Iterator[UnsupportedField]:
    for name in QUANTIZED:
        if config.get(name) is not None:
            yield UnsupportedField(
                name,
                config[name],
                "quantized weights are not computed here; use a checkpoint of floats"
                f" (float32, bfloat16 or float16), or {ANOTHER_ENGINE}",
            )
    if config.get("auto_map") is not None:
        yield UnsupportedField(
            "auto_map",
            config["auto_map"],
            "the checkpoint brings code of its own, which is never run; if it only repeats what"
            " transformers has for this model_type, delete the field",
        )
    kinds = config.get("architectures")
    kind = kinds[0] if isinstance(kinds, list) and len(kinds) == 1 else None
    known = ARCHITECTURES.get(kind) if isinstance(kind, str) else None
    if known is None:
        yield UnsupportedField(
            "architectures",
            kinds,
            f"not computed by a decoder of ours; use engine transformers, or {ANOTHER_ENGINE}",
        )
        return
    if config.get("model_type") != known.model_type:
        yield UnsupportedField(
            "model_type", config.get("model_type"), f"of {kind} is {known.model_type!r}"
        )
    for name in ("dtype", "torch_dtype"):
        if config.get(name) not in (None, *DTYPES):
            yield UnsupportedField(name, config[name], f"must be one of {', '.join(DTYPES)}")
    for name, value in config.items():
        yield from _field(name, value, known)
    yield from _shapes(config)
    yield from _ropes(config)


def _field(name: str, value: Any, known: Architecture) -> Iterator[UnsupportedField]:
    if name in _WITHOUT_EFFECT.split() or name in QUANTIZED or name == "auto_map":
        return
    if name in ("rope_scaling", "rope_parameters"):
        return  # checked as a whole by _ropes
    if name in known.fields:
        try:
            msgspec.convert(value, known.fields[name])
        except msgspec.ValidationError as error:
            yield UnsupportedField(name, value, f"{error}; {ANOTHER_ENGINE}")
    elif value is None:
        return  # null, where transformers has no default either
    elif name not in _FIXED:
        yield UnsupportedField(
            name,
            value,
            f"not known for {known.model_type!r}, so it would be ignored; {ANOTHER_ENGINE}, or"
            " delete the field if you are sure that it does not change what is computed",
        )
    elif type(value) is not type(_FIXED[name]) or value != _FIXED[name]:  # true is not 1
        yield UnsupportedField(
            name, value, f"only {_FIXED[name]!r} is computed here; {ANOTHER_ENGINE}"
        )


def _shapes(config: Mapping[str, Any]) -> Iterator[UnsupportedField]:
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    kv_heads, head_dim = config.get("num_key_value_heads"), config.get("head_dim")
    if _whole(heads) and _whole(kv_heads) and kv_heads and heads % kv_heads:
        yield UnsupportedField(
            "num_key_value_heads", kv_heads, f"must divide num_attention_heads ({heads})"
        )
    if _whole(heads) and _whole(hidden) and head_dim is None and heads and hidden % heads:
        yield UnsupportedField(
            "num_attention_heads", heads, f"must divide the hidden size ({hidden})"
        )
    if _whole(head_dim) and head_dim % 2:
        yield UnsupportedField("head_dim", head_dim, "must be even")
    kinds, layers = config.get("layer_types"), config.get("num_hidden_layers")
    if isinstance(kinds, list) and len(kinds) != layers:
        yield UnsupportedField(
            "layer_types", kinds, f"must have one entry for each of {layers} layers"
        )
    elif isinstance(kinds, list) and "sliding_attention" in kinds:
        if "sliding_window" in config and config["sliding_window"] is None:
            yield UnsupportedField(
                "layer_types", kinds, "has sliding_attention, but sliding_window is null"
            )
        if config.get("use_sliding_window") is False:
            yield UnsupportedField(
                "layer_types", kinds, "has sliding_attention, but use_sliding_window is false"
            )


def _ropes(config: Mapping[str, Any]) -> Iterator[UnsupportedField]:
    present = [n for n in ("rope_scaling", "rope_parameters") if config.get(n) is not None]
    if not present:
        return
    name = present[0]
    rope = config[name]
    if len(present) > 1:
        yield UnsupportedField(name, rope, "there is rope_parameters, too: delete one of them")
        return
    if not isinstance(rope, dict):
        yield UnsupportedField(name, rope, "must be an object")
        return
    kind = rope.get("rope_type", rope.get("type", "default"))
    if rope.get("type", kind) != kind:
        yield UnsupportedField(
            f"{name}.type", rope["type"], f"rope_type is {kind!r}: delete one of them"
        )
        return
    fields = {key: value for key, value in rope.items() if key != "type"} | {"rope_type": kind}
    try:
        read = msgspec.convert(fields, _AnyRope)
    except msgspec.ValidationError as error:
        yield UnsupportedField(name, rope, f"{error}; {ANOTHER_ENGINE}")
        return
    for field in fields.keys() & config.keys():
        if config[field] != fields[field]:
            yield UnsupportedField(
                f"{name}.{field}", fields[field], f"beside it is {config[field]!r}: delete one"
            )
    if isinstance(read, _Llama3) and read.low_freq_factor >= read.high_freq_factor:
        yield UnsupportedField(
            f"{name}.high_freq_factor", read.high_freq_factor, "must be above low_freq_factor"
        )


def _whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
