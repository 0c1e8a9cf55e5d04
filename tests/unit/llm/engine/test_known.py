"""Is every field of a config.json that is not computed exactly refused, by its name?"""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.unit.llm.engine.exact import FORMS
from wherry.llm.engine.known import ARCHITECTURES, refusals

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}
QWEN2 = {
    **LLAMA,
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "max_window_layers": 28,
    "sliding_window": 32768,
    "use_sliding_window": False,
    "use_mrope": False,
}
LLAMA3_ROPE = {
    "factor": 32.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
AS_PUBLISHED = {
    "llama 3": {
        **LLAMA,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 128000,
        "eos_token_id": [128001, 128008],
        "head_dim": 64,
        "initializer_range": 0.02,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "pretraining_tp": 1,
        "rope_scaling": LLAMA3_ROPE,
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "transformers_version": "4.45.0.dev0",
        "use_cache": True,
    },
    "qwen 2.5": {**QWEN2, "attention_dropout": 0.0, "rope_theta": 1000000.0},
    "qwen 2.5, made longer": {
        **QWEN2,
        "rope_scaling": {
            "factor": 4.0,
            "original_max_position_embeddings": 32768,
            "type": "yarn",
        },
    },
    "smollm 2": {
        **LLAMA,
        "is_llama_config": True,
        "rope_interleaved": False,
        "rope_scaling": None,
        "rope_theta": 100000,
        "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}},
    },
    "mistral": {
        **LLAMA,
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "sliding_window": None,
    },
}


@pytest.mark.parametrize("config", AS_PUBLISHED.values(), ids=AS_PUBLISHED)
def test_what_is_computed_exactly_is_not_refused(config: dict[str, Any]) -> None:
    assert refusals(config) == []


@pytest.mark.parametrize(
    "method",
    ["fp8", "gptq", "awq", "mxfp4", "bitsandbytes", "compressed-tensors", "aqlm", "new-one", None],
)
def test_every_quantization_is_refused_whatever_its_method(method: str | None) -> None:
    (refusal,) = refusals({**LLAMA, "quantization_config": {"quant_method": method, "bits": 4}})
    assert refusal.field == "quantization_config"
    assert "floats" in str(refusal)
    assert "vllm:" in str(refusal)


ROPES: dict[str, Any] = {
    "kind": {"rope_type": "mrope", "mrope_section": [1, 2]},
    "su": {"type": "su", "short_factor": [1.0], "long_factor": [1.0]},
    "two kinds": {"rope_type": "linear", "type": "dynamic", "factor": 2.0},
    "no factor": {"rope_type": "linear"},
    "factor of text": {"rope_type": "linear", "factor": "2"},
    "negative factor": {"rope_type": "linear", "factor": -2.0},
    "field of another kind": {"rope_type": "linear", "factor": 2.0, "beta_fast": 32},
    "unknown field": {**LLAMA3_ROPE, "finetuned": True},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "attn_temperature": 0.1},
    "other theta": {"rope_type": "linear", "factor": 2.0, "rope_theta": 7.0},
    "partial": {"rope_type": "default", "partial_rotary_factor": 0.5},
    "by layer": {"full_attention": {"rope_type": "default"}},
    "frequencies the wrong way": {**LLAMA3_ROPE, "low_freq_factor": 4.0},
    "longrope": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]},
    "no object": [1],
    "kind no text": {"rope_type": ["linear"], "factor": 2.0},
}


@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)
@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
def test_rotations_that_are_not_known_are_refused(name: str, rope: Any) -> None:
    found = refusals({**LLAMA, "rope_theta": 10000.0, name: rope})
    assert found
    assert all(refusal.field.startswith(name) for refusal in found)


ODD: dict[str, Any] = {
    # Computed by no code here
    "sliding_window": 4096,
    "layer_types": ["full_attention"] * 16,
    "partial_rotary_factor": 0.5,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
    "query_pre_attn_scalar": 256,
    "logits_scaling": 8.0,
    "qk_layernorm": True,
    "clip_qkv": 8.0,
    "alibi": True,
    "attention_chunk_size": 8192,
    "no_rope_layers": [1] * 16,
    "num_experts": 8,
    "kv_lora_rank": 512,
    "num_nextn_predict_layers": 1,
    "vision_config": {"hidden_size": 1},
    "text_config": {"hidden_size": 1},
    "attn_implementation": "someone/kernels",
    "_attn_implementation": "someone/kernels",
    "compression_config": {"format": "int"},
    "quantization": {"bits": 4},
    "auto_map": {"AutoModelForCausalLM": "modeling.Mine"},
    "per_layer_config": {"0": {"head_dim": 8}},
    "a_field_of_tomorrow": False,
    # Known, with another value
    "hidden_act": "gelu",
    "is_encoder_decoder": True,
    "is_decoder": 0,
    "add_cross_attention": True,
    "chunk_size_feed_forward": 16,
    "pruned_heads": {"1": [0]},
    "torch_dtype": "float8_e4m3fn",
    "dtype": "int8",
    "model_type": "mistral",
    "architectures": ["Llama4ForCausalLM"],
    # Not what it must be
    "num_hidden_layers": 10**9,
    "hidden_size": -2048,
    "vocab_size": "128256",
    "num_key_value_heads": 5,
    "num_attention_heads": 31,
    "head_dim": 7,
    "rms_norm_eps": float("nan"),
    "rope_theta": float("inf"),
    "attention_bias": 1,
    "tie_word_embeddings": "false",
    "max_position_embeddings": 1e5,
}


@pytest.mark.parametrize("field", ODD)
def test_a_field_that_is_not_computed_is_refused_by_its_name(field: str) -> None:
    found = refusals({**LLAMA, field: ODD[field]})
    assert field in [refusal.field for refusal in found]


@pytest.mark.parametrize("kinds", [None, [], "LlamaForCausalLM", ["A", "B"], [["Llama"]], [None]])
def test_one_architecture_must_be_named(kinds: Any) -> None:
    (refusal,) = refusals({**LLAMA, "architectures": kinds})
    assert refusal.field == "architectures"


WINDOWS: dict[str, Any] = {
    "of another length": {"layer_types": ["sliding_attention"] * 3},
    "of another kind": {"layer_types": ["linear_attention"] * 16, "use_sliding_window": True},
    "without a window": {"layer_types": ["sliding_attention"] * 16, "sliding_window": None},
    "not used": {"layer_types": ["sliding_attention"] * 16, "use_sliding_window": False},
}


@pytest.mark.parametrize("fields", WINDOWS.values(), ids=WINDOWS)
def test_windows_that_contradict_each_other_are_refused(fields: dict[str, Any]) -> None:
    found = refusals({**QWEN2, "sliding_window": 8, "use_sliding_window": True, **fields})
    assert [refusal.field for refusal in found] == ["layer_types"]


def test_a_field_that_is_null_is_not_there() -> None:
    assert refusals({**LLAMA, "quantization_config": None, "a_field_of_tomorrow": None}) == []


def test_a_long_value_is_cut_in_the_message() -> None:
    (refusal,) = refusals({**LLAMA, "vision_config": {"x": "y" * 10_000}})
    assert len(str(refusal)) < 400


def test_the_page_lists_the_architectures_that_are_compared() -> None:
    page = Path("docs/how-to/llm.md").read_text()
    listed = page.partition("<!-- architectures")[2].partition("<!-- end -->")[0]
    own, _, others = listed.partition("through transformers")
    assert set(re.findall(r"`(\w+)`", own)) == ARCHITECTURES.keys()
    assert set(re.findall(r"`(\w+)`", others)) == FORMS.keys() - ARCHITECTURES.keys()
