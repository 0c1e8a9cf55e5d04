"""Which architectures does the engine compute exactly, and which fields may each of them have?

A table only. A test compares each architecture with transformers, logit by logit
(`tests/unit/llm/test_exact.py`); others are refused. A field that the architecture does not list is
refused too: transformers would ignore it although the author set it for a reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from wherry.llm.config_fields import HEAD_SIZE, ONE_OR_ALL_HEADS, Derived, OneOf, Only, Rule, Whole


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """One architecture and the fields that its config.json may have."""

    model_type: str
    fields: frozenset[str]
    #: Rules that are stricter than those in FIELDS.
    only: Mapping[str, Rule] = field(default_factory=dict)
    #: Types of rotary scaling; empty: learned positions, or none.
    ropes: tuple[str, ...] = ("default", "linear", "yarn", "llama3")
    #: Whether "rope_parameters" may have an entry for each layer type.
    ropes_by_layer_type: bool = False
    #: Implemented in model.py; else it runs through transformers' modules.
    own: bool = False


_BASE: Final = (
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads hidden_act"
    " max_position_embeddings tie_word_embeddings"
)
_ROPE: Final = "rope_theta rope_scaling rope_parameters"
_LLAMA: Final = f"{_BASE} {_ROPE} num_key_value_heads rms_norm_eps"
_WINDOWS: Final = "sliding_window layer_types"
_QWEN_WINDOWS: Final = f"{_WINDOWS} use_sliding_window max_window_layers"
_MOE: Final = "num_experts_per_tok norm_topk_prob moe_intermediate_size"
_SPARSE: Final = "decoder_sparse_step mlp_only_layers num_experts"
_ROUTED: Final = "n_routed_experts n_shared_experts n_group topk_group routed_scaling_factor"
_GPT: Final = (
    "vocab_size n_positions n_ctx n_embd n_layer n_head n_inner activation_function"
    " layer_norm_epsilon scale_attn_weights tie_word_embeddings"
)
_MULTIPLIERS: Final = "embedding_multiplier logits_scaling residual_multiplier attention_multiplier"
_ALL_ROPES: Final = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")
_NO_WINDOWS: Final = {"max_window_layers": Only("use_sliding_window", False)}
_SILU: Final = {"hidden_act": OneOf(("silu",))}


def _family(model_type: str, fields: str, **options: Any) -> ModelFamily:
    return ModelFamily(model_type, frozenset(fields.split()), **options)


#: By the name in the field "architectures".
FAMILIES: Final[Mapping[str, ModelFamily]] = {
    "LlamaForCausalLM": _family(
        "llama",
        f"{_LLAMA} head_dim attention_bias mlp_bias",
        own=True,
        ropes=_ALL_ROPES,
        only=_SILU,
    ),
    "MistralForCausalLM": _family(
        "mistral", f"{_LLAMA} head_dim sliding_window", own=True, ropes=_ALL_ROPES, only=_SILU
    ),
    "Qwen2ForCausalLM": _family(
        "qwen2", f"{_LLAMA} head_dim {_QWEN_WINDOWS}", own=True, ropes=_ALL_ROPES, only=_SILU
    ),
    "Qwen3ForCausalLM": _family(
        "qwen3",
        f"{_LLAMA} head_dim attention_bias {_QWEN_WINDOWS}",
        own=True,
        ropes=_ALL_ROPES,
        only=_SILU,
    ),
    "ArceeForCausalLM": _family("arcee", f"{_LLAMA} head_dim attention_bias mlp_bias"),
    "CohereForCausalLM": _family(
        "cohere",
        f"{_BASE} {_ROPE} num_key_value_heads layer_norm_eps attention_bias logit_scale"
        " use_qk_norm",
    ),
    "Cohere2ForCausalLM": _family(
        "cohere2",
        f"{_BASE} {_ROPE} num_key_value_heads layer_norm_eps attention_bias logit_scale"
        f" {_WINDOWS} sliding_window_pattern head_dim",
        only={"head_dim": Derived(HEAD_SIZE)},
    ),
    "Ernie4_5ForCausalLM": _family("ernie4_5", f"{_LLAMA} head_dim use_bias"),
    "Exaone4ForCausalLM": _family(
        "exaone4",
        f"{_LLAMA} {_WINDOWS} sliding_window_pattern",
        only={"sliding_window_pattern": OneOf(("LLLG", *range(65)))},
    ),
    "GemmaForCausalLM": _family(
        "gemma", f"{_LLAMA} head_dim attention_bias use_bidirectional_attention"
    ),
    "Gemma3ForCausalLM": _family(
        "gemma3_text",
        f"{_LLAMA.replace('hidden_act', 'hidden_activation')} head_dim attention_bias {_WINDOWS}"
        " use_bidirectional_attention sliding_window_pattern _sliding_window_pattern"
        " rope_local_base_freq query_pre_attn_scalar final_logit_softcapping"
        " attn_logit_softcapping",
        ropes_by_layer_type=True,
    ),
    "GlmForCausalLM": _family("glm", f"{_LLAMA} head_dim attention_bias partial_rotary_factor"),
    "Glm4ForCausalLM": _family("glm4", f"{_LLAMA} head_dim attention_bias partial_rotary_factor"),
    "GPT2LMHeadModel": _family(
        "gpt2", f"{_GPT} scale_attn_by_inverse_layer_idx reorder_and_upcast_attn", ropes=()
    ),
    "GPTBigCodeForCausalLM": _family(
        "gpt_bigcode",
        f"{_GPT} multi_query num_key_value_heads attention_softmax_in_fp32"
        " scale_attention_softmax_in_fp32",
        only={"num_key_value_heads": Derived(ONE_OR_ALL_HEADS)},
        ropes=(),
    ),
    "GPTNeoXForCausalLM": _family(
        "gpt_neox",
        f"{_BASE} {_ROPE} layer_norm_eps attention_bias use_parallel_residual rotary_pct"
        " rotary_emb_base",
    ),
    "GraniteForCausalLM": _family("granite", f"{_LLAMA} attention_bias mlp_bias {_MULTIPLIERS}"),
    "GraniteMoeForCausalLM": _family(
        "granitemoe",
        f"{_LLAMA} attention_bias {_MULTIPLIERS} num_local_experts num_experts_per_tok",
    ),
    "MixtralForCausalLM": _family(
        "mixtral", f"{_LLAMA} head_dim sliding_window num_local_experts num_experts_per_tok"
    ),
    "NemotronForCausalLM": _family(
        "nemotron",
        f"{_BASE} {_ROPE} num_key_value_heads head_dim norm_eps attention_bias mlp_bias"
        " partial_rotary_factor",
        ropes=("default",),
    ),
    "OlmoForCausalLM": _family(
        "olmo", f"{_BASE} {_ROPE} num_key_value_heads attention_bias clip_qkv"
    ),
    "Olmo2ForCausalLM": _family("olmo2", f"{_LLAMA} attention_bias"),
    "Olmo3ForCausalLM": _family(
        "olmo3", f"{_LLAMA} attention_bias {_WINDOWS}", ropes_by_layer_type=True
    ),
    "OlmoeForCausalLM": _family(
        "olmoe", f"{_LLAMA} attention_bias clip_qkv num_experts num_experts_per_tok norm_topk_prob"
    ),
    "OPTForCausalLM": _family(
        "opt",
        "vocab_size hidden_size num_hidden_layers ffn_dim max_position_embeddings"
        " do_layer_norm_before _remove_final_layer_norm word_embed_proj_dim num_attention_heads"
        " activation_function enable_bias layer_norm_elementwise_affine tie_word_embeddings",
        ropes=(),
    ),
    "PhiForCausalLM": _family(
        "phi",
        f"{_BASE} {_ROPE} num_key_value_heads layer_norm_eps partial_rotary_factor qk_layernorm",
    ),
    "Phi3ForCausalLM": _family(
        "phi3",
        f"{_LLAMA} sliding_window partial_rotary_factor original_max_position_embeddings"
        " attention_bias",
        only={"attention_bias": OneOf((False,))},
        ropes=("default", "longrope"),
    ),
    "Qwen2MoeForCausalLM": _family(
        "qwen2_moe",
        f"{_LLAMA} {_QWEN_WINDOWS} {_MOE} {_SPARSE} shared_expert_intermediate_size qkv_bias",
        only={"sliding_window": Whole(0, 1 << 24, or_null=True)},
    ),
    "Qwen3MoeForCausalLM": _family(
        "qwen3_moe",
        f"{_LLAMA} head_dim attention_bias {_MOE} {_SPARSE} num_local_experts"
        " sliding_window use_sliding_window max_window_layers",
        only=_NO_WINDOWS,
    ),
    "SeedOssForCausalLM": _family(
        "seed_oss", f"{_LLAMA} head_dim attention_bias attention_out_bias mlp_bias"
    ),
    "SmolLM3ForCausalLM": _family(
        "smollm3",
        f"{_LLAMA} attention_bias mlp_bias {_QWEN_WINDOWS} no_rope_layers no_rope_layer_interval",
        only=_NO_WINDOWS,
    ),
    "StableLmForCausalLM": _family(
        "stablelm",
        f"{_BASE} {_ROPE} num_key_value_heads layer_norm_eps partial_rotary_factor use_qkv_bias"
        " qk_layernorm use_parallel_residual",
    ),
    "Starcoder2ForCausalLM": _family(
        "starcoder2",
        f"{_BASE} {_ROPE} num_key_value_heads norm_epsilon sliding_window use_bias norm_type"
        " mlp_type scale_attn_weights attention_softmax_in_fp32 scale_attention_softmax_in_fp32",
        only={"scale_attn_weights": OneOf((True,))},
    ),
    "ApertusForCausalLM": _family(
        "apertus", f"{_LLAMA} attention_bias", only={"hidden_act": OneOf(("xielu",))}
    ),
    "BioGptForCausalLM": _family(
        "biogpt",
        "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads hidden_act"
        " max_position_embeddings tie_word_embeddings layer_norm_eps scale_embedding",
        ropes=(),
    ),
    "CwmForCausalLM": _family("cwm", f"{_LLAMA} head_dim mlp_bias {_WINDOWS}"),
    "Dots1ForCausalLM": _family(
        "dots1",
        f"{_LLAMA} attention_bias {_MOE} {_ROUTED} first_k_dense_replace {_WINDOWS}"
        " max_window_layers",
    ),
    "Ernie4_5_MoeForCausalLM": _family(
        "ernie4_5_moe",
        f"{_LLAMA} use_bias moe_intermediate_size moe_k moe_num_experts moe_num_shared_experts"
        " moe_layer_start_index moe_layer_end_index moe_layer_interval moe_norm_min",
    ),
    "FlexOlmoForCausalLM": _family(
        "flex_olmo", f"{_LLAMA} attention_bias num_experts num_experts_per_tok norm_topk_prob"
    ),
    "Glm4MoeForCausalLM": _family(
        "glm4_moe",
        f"{_LLAMA} head_dim attention_bias {_MOE} {_ROUTED} use_qk_norm partial_rotary_factor"
        " num_nextn_predict_layers num_mtp_layers first_k_dense_replace",
    ),
    "GraniteMoeSharedForCausalLM": _family(
        "granitemoeshared",
        f"{_LLAMA} attention_bias {_MULTIPLIERS} num_local_experts num_experts_per_tok"
        " shared_intermediate_size",
    ),
    "HeliumForCausalLM": _family("helium", f"{_LLAMA} head_dim attention_bias mlp_bias"),
    "HyperCLOVAXForCausalLM": _family(
        "hyperclovax", f"{_LLAMA} head_dim attention_bias mlp_bias {_MULTIPLIERS} use_post_norm"
    ),
    "MiniMaxM2ForCausalLM": _family(
        "minimax_m2",
        f"{_LLAMA} head_dim num_local_experts num_experts_per_tok partial_rotary_factor",
    ),
    "MinistralForCausalLM": _family("ministral", f"{_LLAMA} head_dim {_WINDOWS}"),
    "NanoChatForCausalLM": _family("nanochat", f"{_LLAMA} attention_bias final_logit_softcapping"),
    "PersimmonForCausalLM": _family(
        "persimmon", f"{_BASE} {_ROPE} layer_norm_eps qk_layernorm partial_rotary_factor"
    ),
    "SolarOpenForCausalLM": _family(
        "solar_open",
        f"{_LLAMA.replace(' intermediate_size', '')} head_dim attention_bias {_MOE} {_ROUTED}"
        " partial_rotary_factor",
    ),
}
