"""Which architectures does the engine compute exactly, and which fields has each of them?

Only a table. Each architecture here is held equal to transformers, logit by logit, by a test
(`tests/unit/llm/test_exact.py`); one that is not here is refused. A field that is in none of the
lists of its architecture is refused, too: transformers would ignore it, and the author meant
something by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from wherry.llm.config_fields import HEAD_SIZE, ONE_OR_ALL_HEADS, Derived, OneOf, Only, Rule, Whole


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """One architecture: what its config.json may hold."""

    model_type: str
    fields: frozenset[str]
    #: Where this architecture allows less than FIELDS does.
    only: Mapping[str, Rule] = field(default_factory=dict)
    #: Kinds of rotations; none: positions are learned, or there are none.
    ropes: tuple[str, ...] = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")
    #: May "rope_parameters" have rotations for each of the layer types?
    ropes_by_layer_type: bool = False
    #: Written here (model.py), rather than run through transformers' modules.
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
_STATIC: Final = ("default", "linear", "yarn", "llama3")
_NO_WINDOWS: Final = {"max_window_layers": Only("use_sliding_window", False)}
_SILU: Final = {"hidden_act": OneOf(("silu",))}


def _family(model_type: str, fields: str, **options: Any) -> ModelFamily:
    return ModelFamily(model_type, frozenset(fields.split()), **options)


#: By the name in "architectures".
FAMILIES: Final[Mapping[str, ModelFamily]] = {
    "LlamaForCausalLM": _family(
        "llama", f"{_LLAMA} head_dim attention_bias mlp_bias", own=True, only=_SILU
    ),
    "MistralForCausalLM": _family(
        "mistral", f"{_LLAMA} head_dim sliding_window", own=True, only=_SILU
    ),
    "Qwen2ForCausalLM": _family(
        "qwen2", f"{_LLAMA} head_dim {_QWEN_WINDOWS}", own=True, only=_SILU
    ),
    "Qwen3ForCausalLM": _family(
        "qwen3", f"{_LLAMA} head_dim attention_bias {_QWEN_WINDOWS}", own=True, only=_SILU
    ),
    "ArceeForCausalLM": _family(
        "arcee", f"{_LLAMA} head_dim attention_bias mlp_bias", ropes=_STATIC
    ),
    "CohereForCausalLM": _family(
        "cohere",
        f"{_BASE} {_ROPE} num_key_value_heads layer_norm_eps attention_bias logit_scale"
        " use_qk_norm",
        ropes=_STATIC,
    ),
    "Cohere2ForCausalLM": _family(
        "cohere2",
        f"{_BASE} {_ROPE} num_key_value_heads layer_norm_eps attention_bias logit_scale"
        f" {_WINDOWS} sliding_window_pattern head_dim",
        only={"head_dim": Derived(HEAD_SIZE)},
        ropes=_STATIC,
    ),
    "Ernie4_5ForCausalLM": _family("ernie4_5", f"{_LLAMA} head_dim use_bias", ropes=_STATIC),
    "Exaone4ForCausalLM": _family(
        "exaone4",
        f"{_LLAMA} {_WINDOWS} sliding_window_pattern",
        only={"sliding_window_pattern": OneOf(("LLLG", *range(65)))},
        ropes=_STATIC,
    ),
    "GemmaForCausalLM": _family(
        "gemma",
        f"{_LLAMA} head_dim attention_bias use_bidirectional_attention",
        ropes=_STATIC,
    ),
    "Gemma3ForCausalLM": _family(
        "gemma3_text",
        f"{_LLAMA.replace('hidden_act', 'hidden_activation')} head_dim attention_bias {_WINDOWS}"
        " use_bidirectional_attention sliding_window_pattern _sliding_window_pattern"
        " rope_local_base_freq query_pre_attn_scalar final_logit_softcapping"
        " attn_logit_softcapping",
        ropes=_STATIC,
        ropes_by_layer_type=True,
    ),
    "GlmForCausalLM": _family(
        "glm", f"{_LLAMA} head_dim attention_bias partial_rotary_factor", ropes=_STATIC
    ),
    "Glm4ForCausalLM": _family(
        "glm4", f"{_LLAMA} head_dim attention_bias partial_rotary_factor", ropes=_STATIC
    ),
    "GPT2LMHeadModel": _family(
        "gpt2",
        f"{_GPT} scale_attn_by_inverse_layer_idx reorder_and_upcast_attn",
        ropes=(),
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
        ropes=_STATIC,
    ),
    "GraniteForCausalLM": _family(
        "granite", f"{_LLAMA} attention_bias mlp_bias {_MULTIPLIERS}", ropes=_STATIC
    ),
    "GraniteMoeForCausalLM": _family(
        "granitemoe",
        f"{_LLAMA} attention_bias {_MULTIPLIERS} num_local_experts num_experts_per_tok",
        ropes=_STATIC,
    ),
    "MixtralForCausalLM": _family(
        "mixtral",
        f"{_LLAMA} head_dim sliding_window num_local_experts num_experts_per_tok",
        ropes=_STATIC,
    ),
    "NemotronForCausalLM": _family(
        "nemotron",
        f"{_BASE} {_ROPE} num_key_value_heads head_dim norm_eps attention_bias mlp_bias"
        " partial_rotary_factor",
        ropes=("default",),
    ),
    "OlmoForCausalLM": _family(
        "olmo", f"{_BASE} {_ROPE} num_key_value_heads attention_bias clip_qkv", ropes=_STATIC
    ),
    "Olmo2ForCausalLM": _family("olmo2", f"{_LLAMA} attention_bias", ropes=_STATIC),
    "Olmo3ForCausalLM": _family(
        "olmo3", f"{_LLAMA} attention_bias {_WINDOWS}", ropes=_STATIC, ropes_by_layer_type=True
    ),
    "OlmoeForCausalLM": _family(
        "olmoe",
        f"{_LLAMA} attention_bias clip_qkv num_experts num_experts_per_tok norm_topk_prob",
        ropes=_STATIC,
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
        ropes=_STATIC,
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
        ropes=_STATIC,
    ),
    "Qwen3MoeForCausalLM": _family(
        "qwen3_moe",
        f"{_LLAMA} head_dim attention_bias {_MOE} {_SPARSE} num_local_experts"
        " sliding_window use_sliding_window max_window_layers",
        only=_NO_WINDOWS,
        ropes=_STATIC,
    ),
    "SeedOssForCausalLM": _family(
        "seed_oss",
        f"{_LLAMA} head_dim attention_bias attention_out_bias mlp_bias",
        ropes=_STATIC,
    ),
    "SmolLM3ForCausalLM": _family(
        "smollm3",
        f"{_LLAMA} attention_bias mlp_bias {_QWEN_WINDOWS} no_rope_layers no_rope_layer_interval",
        only=_NO_WINDOWS,
        ropes=_STATIC,
    ),
    "StableLmForCausalLM": _family(
        "stablelm",
        f"{_BASE} {_ROPE} num_key_value_heads layer_norm_eps partial_rotary_factor use_qkv_bias"
        " qk_layernorm use_parallel_residual",
        ropes=_STATIC,
    ),
    "Starcoder2ForCausalLM": _family(
        "starcoder2",
        f"{_BASE} {_ROPE} num_key_value_heads norm_epsilon sliding_window use_bias norm_type"
        " mlp_type scale_attn_weights attention_softmax_in_fp32 scale_attention_softmax_in_fp32",
        only={"scale_attn_weights": OneOf((True,))},
        ropes=_STATIC,
    ),
    "ApertusForCausalLM": _family(
        "apertus",
        f"{_LLAMA} attention_bias",
        only={"hidden_act": OneOf(("xielu",))},
        ropes=_STATIC,
    ),
    "BioGptForCausalLM": _family(
        "biogpt",
        "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads hidden_act"
        " max_position_embeddings tie_word_embeddings layer_norm_eps scale_embedding",
        ropes=(),
    ),
    "CwmForCausalLM": _family("cwm", f"{_LLAMA} head_dim mlp_bias {_WINDOWS}", ropes=_STATIC),
    "Dots1ForCausalLM": _family(
        "dots1",
        f"{_LLAMA} attention_bias {_MOE} {_ROUTED} first_k_dense_replace {_WINDOWS}"
        " max_window_layers",
        ropes=_STATIC,
    ),
    "Ernie4_5_MoeForCausalLM": _family(
        "ernie4_5_moe",
        f"{_LLAMA} use_bias moe_intermediate_size moe_k moe_num_experts moe_num_shared_experts"
        " moe_layer_start_index moe_layer_end_index moe_layer_interval moe_norm_min",
        ropes=_STATIC,
    ),
    "FlexOlmoForCausalLM": _family(
        "flex_olmo",
        f"{_LLAMA} attention_bias num_experts num_experts_per_tok norm_topk_prob",
        ropes=_STATIC,
    ),
    "Glm4MoeForCausalLM": _family(
        "glm4_moe",
        f"{_LLAMA} head_dim attention_bias {_MOE} {_ROUTED} use_qk_norm partial_rotary_factor"
        " num_nextn_predict_layers num_mtp_layers first_k_dense_replace",
        ropes=_STATIC,
    ),
    "GraniteMoeSharedForCausalLM": _family(
        "granitemoeshared",
        f"{_LLAMA} attention_bias {_MULTIPLIERS} num_local_experts num_experts_per_tok"
        " shared_intermediate_size",
        ropes=_STATIC,
    ),
    "HeliumForCausalLM": _family(
        "helium", f"{_LLAMA} head_dim attention_bias mlp_bias", ropes=_STATIC
    ),
    "HyperCLOVAXForCausalLM": _family(
        "hyperclovax",
        f"{_LLAMA} head_dim attention_bias mlp_bias {_MULTIPLIERS} use_post_norm",
        ropes=_STATIC,
    ),
    "MiniMaxM2ForCausalLM": _family(
        "minimax_m2",
        f"{_LLAMA} head_dim num_local_experts num_experts_per_tok partial_rotary_factor",
        ropes=_STATIC,
    ),
    "MinistralForCausalLM": _family("ministral", f"{_LLAMA} head_dim {_WINDOWS}", ropes=_STATIC),
    "NanoChatForCausalLM": _family(
        "nanochat", f"{_LLAMA} attention_bias final_logit_softcapping", ropes=_STATIC
    ),
    "PersimmonForCausalLM": _family(
        "persimmon",
        f"{_BASE} {_ROPE} layer_norm_eps qk_layernorm partial_rotary_factor",
        ropes=_STATIC,
    ),
    "SolarOpenForCausalLM": _family(
        "solar_open",
        f"{_LLAMA.replace(' intermediate_size', '')} head_dim attention_bias {_MOE} {_ROUTED}"
        " partial_rotary_factor",
        ropes=_STATIC,
    ),
}
