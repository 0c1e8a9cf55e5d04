"""Does the engine compute what this config.json says exactly, and if not, which field is the
reason?

Only what is listed (`families.py`, `config_fields.py`) is accepted: an unknown field may affect
every token. Pure: takes the parsed file, returns refusals.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from wherry.llm.config_fields import (
    FIELDS,
    FIXED,
    HEAD_SIZE,
    ROPE_FIELDS,
    ROPE_RULES,
    WITHOUT_EFFECT,
    Derived,
    ListOf,
    Number,
    Numbers,
    OneOf,
    Only,
    Rule,
    Whole,
)
from wherry.llm.families import FAMILIES, ModelFamily

DTYPES = ("float32", "bfloat16", "float16")
#: Fields of quantized weights. Others of this kind are refused as unknown.
QUANTIZED = ("quantization_config", "compression_config", "quantization")
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
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        yield ("architectures", kinds, f"not computed exactly here; {ANOTHER_ENGINE}")
        return
    if config.get("model_type") != family.model_type:
        yield ("model_type", config.get("model_type"), f"of {kind} is {family.model_type!r}")
    for name in ("dtype", "torch_dtype"):
        if config.get(name) not in (None, *DTYPES):
            yield (name, config[name], f"must be one of {', '.join(DTYPES)}")
    for name, value in config.items():
        yield from _field(name, value, family, config)
    yield from _shapes(config)
    yield from _ropes(config, family)


def _field(
    name: str, value: Any, family: ModelFamily, config: Mapping[str, Any]
) -> Iterator[_Refusal]:
    """Check one field of a known architecture on its own."""
    if name in WITHOUT_EFFECT or name in QUANTIZED or name == "auto_map":
        return
    if name in ("rope_scaling", "rope_parameters") and family.ropes:
        return  # checked as a whole by _ropes
    if name in family.fields:
        rule = family.only.get(name) or FIELDS[name]
        if problem := _problem(rule, value, config):
            yield (name, value, problem)
    elif value is None:
        return  # null, where transformers has no default either
    elif name not in FIXED:
        yield (
            name,
            value,
            f"not known for {family.model_type!r}, so it would be ignored; {ANOTHER_ENGINE}, or"
            " delete the field if you are sure that it does not change what is computed",
        )
    elif not any(_same(value, allowed) for allowed in FIXED[name]):
        yield (name, value, f"only {FIXED[name][0]!r} is computed here; {ANOTHER_ENGINE}")


def _shapes(config: Mapping[str, Any]) -> Iterator[_Refusal]:
    """Check sizes that must fit each other."""
    heads = config.get("num_attention_heads", config.get("n_head"))
    hidden = config.get("hidden_size", config.get("n_embd"))
    kv_heads, head_dim = config.get("num_key_value_heads"), config.get("head_dim")
    if _whole(heads) and _whole(kv_heads) and kv_heads and heads % kv_heads:
        yield ("num_key_value_heads", kv_heads, f"must divide num_attention_heads ({heads})")
    if _whole(heads) and _whole(hidden) and head_dim is None and heads and hidden % heads:
        yield ("num_attention_heads", heads, f"must divide the hidden size ({hidden})")
    if _whole(head_dim) and head_dim % 2:
        yield ("head_dim", head_dim, "must be even")
    experts, local_experts = config.get("num_experts"), config.get("num_local_experts")
    if experts is not None and local_experts is not None and experts != local_experts:
        yield ("num_experts", experts, f"num_local_experts is {local_experts!r}")
    if config.get("sliding_window") == 0 and config.get("use_sliding_window") is not False:
        yield ("sliding_window", 0, "0 goes only with use_sliding_window = False")
    kinds = config.get("layer_types")
    if kinds is None and "_sliding_window_pattern" in config:
        yield ("layer_types", None, "goes with _sliding_window_pattern: which layers slide?")
    if isinstance(kinds, list) and "sliding_attention" in kinds:
        if "sliding_window" in config and config["sliding_window"] is None:
            yield ("layer_types", kinds, "has sliding_attention, but sliding_window is null")
        if config.get("use_sliding_window") is False:
            yield ("layer_types", kinds, "has sliding_attention, but use_sliding_window is false")


def _ropes(config: Mapping[str, Any], family: ModelFamily) -> Iterator[_Refusal]:
    """Check the rotary embeddings."""
    given = [n for n in ("rope_scaling", "rope_parameters") if config.get(n) is not None]
    if not family.ropes or not given:
        return
    name = given[0]
    ropes = config[name]
    if len(given) > 1:
        yield (name, ropes, "there is rope_parameters, too: delete one of them")
        return
    if not isinstance(ropes, dict):
        yield (name, ropes, "must be an object")
        return
    by_layer_type = [k for k in ropes if k in ("full_attention", "sliding_attention")]
    if family.ropes_by_layer_type and by_layer_type and len(by_layer_type) == len(ropes):
        for kind in by_layer_type:
            yield from _rope(f"{name}.{kind}", ropes[kind], config, family)
    else:
        yield from _rope(name, ropes, config, family)


def _rope(
    name: str, rope: Any, config: Mapping[str, Any], family: ModelFamily
) -> Iterator[_Refusal]:
    if not isinstance(rope, dict):
        yield (name, rope, "must be an object")
        return
    kind = rope.get("rope_type", rope.get("type", "default"))
    if rope.get("type", kind) != kind:
        yield (f"{name}.type", rope["type"], f"rope_type says {kind!r}: delete one of them")
        return
    if not isinstance(kind, str) or kind not in family.ropes:
        yield (
            f"{name}.rope_type",
            kind,
            f"must be one of {', '.join(family.ropes)}; {ANOTHER_ENGINE}",
        )
        return
    needed, further = ROPE_FIELDS[kind]
    known = needed | further | {"rope_type", "type", "rope_theta"}
    if "partial_rotary_factor" in family.fields or "rotary_pct" in family.fields:
        known |= {"partial_rotary_factor"}
    yield from _factors(name, rope, config)
    for field in sorted(needed - rope.keys()):
        yield (f"{name}.{field}", None, f"rope_type {kind!r} needs it")
    for field, value in rope.items():
        if field not in known:
            yield (f"{name}.{field}", value, f"not known for rope_type {kind!r}; {ANOTHER_ENGINE}")
        elif field not in ("rope_type", "type"):
            if problem := _problem(ROPE_RULES[field], value, config):
                yield (f"{name}.{field}", value, problem)
            elif config.get(field, value) != value:
                yield (
                    f"{name}.{field}",
                    value,
                    f"{field} beside it is {config[field]!r}: delete one",
                )


def _factors(name: str, rope: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[_Refusal]:
    """Check fields of a rotary scaling that must fit each other."""
    low, high = rope.get("low_freq_factor"), rope.get("high_freq_factor")
    if _number(low) and _number(high) and low >= high:
        yield (f"{name}.high_freq_factor", high, f"must be above low_freq_factor ({low})")
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    size = config.get("head_dim")
    if size is None and _whole(heads) and _whole(hidden) and heads:
        size = hidden // heads
    part = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    for field in ("short_factor", "long_factor"):
        factors = rope.get(field)
        if not isinstance(factors, list) or not _whole(size) or not _number(part):
            continue
        if len(factors) != int(size * part) // 2:
            yield (
                f"{name}.{field}",
                factors,
                f"must have {int(size * part) // 2} numbers, one a pair",
            )


def _problem(rule: Rule, value: Any, config: Mapping[str, Any]) -> str:
    """What is wrong with a value; "" if nothing is."""
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
        case Numbers(least, most, or_null):
            fine = (value is None and or_null) or (
                isinstance(value, list) and all(_number(v) and least <= v <= most for v in value)
            )
            return "" if fine else f"must be a list of numbers from {least:g} to {most:g}"
        case ListOf(values, or_null):
            if value is None and or_null:
                return ""
            layers = config.get("num_hidden_layers")
            if not isinstance(value, list) or len(value) != layers:
                return f"must be a list with one entry for each of {layers} layers"
            odd = [v for v in value if not any(_same(v, allowed) for allowed in values)]
            return f"{odd[0]!r} in it is not computed here; {ANOTHER_ENGINE}" if odd else ""

        case Only(beside, wanted):
            fine = _same(config.get(beside, wanted), wanted)
            return "" if fine else f"is known only with {beside} = {wanted!r}; {ANOTHER_ENGINE}"
        case Derived(what):
            heads = config.get("num_attention_heads", config.get("n_head"))
            if what == HEAD_SIZE:
                hidden = config.get("hidden_size")
                right = hidden // heads if _whole(heads) and heads and _whole(hidden) else None
            else:
                right = heads if config.get("multi_query") is False else 1
            return "" if value == right else f"must be {what}: {right}"


def _same(value: Any, allowed: Any) -> bool:
    """Compare with types: JSON's true is not 1."""
    return type(value) is type(allowed) and bool(value == allowed)


def _whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
