"""What may each field of a config.json say, so that it is computed exactly?

Only tables: rules for values, and the fields that any architecture may have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

# What a value may be


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number in these bounds."""

    least: int
    most: int
    or_null: bool = False


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number in these bounds."""

    least: float
    most: float
    or_null: bool = False


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of these, of the same type."""

    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list with one value for each layer."""

    values: tuple[Any, ...]
    or_null: bool = True


@dataclass(frozen=True, slots=True)
class Numbers:
    """A list of finite numbers in these bounds."""

    least: float
    most: float = 1e6
    or_null: bool = False


@dataclass(frozen=True, slots=True)
class Derived:
    """What transformers makes of other fields, whatever the file says: it must say that."""

    what: str


@dataclass(frozen=True, slots=True)
class Only:
    """Anything, as long as another field keeps it from having an effect."""

    beside: str
    value: Any


Rule = Whole | Number | OneOf | ListOf | Numbers | Derived | Only

#: Derived values.
HEAD_SIZE: Final = "the hidden size / num_attention_heads"
ONE_OR_ALL_HEADS: Final = "1 with multi_query, else n_head"

#: Bounds of sizes: several times what any published decoder has. Beyond them a file is hostile or
#: damaged, and building the modules alone would take all memory or minutes.
_SIZE: Final = Whole(1, 1 << 20)
_SIZE_OR_NULL: Final = Whole(1, 1 << 20, or_null=True)
_LAYERS: Final = Whole(1, 512)
_HEADS: Final = Whole(1, 4096)
_HEADS_OR_NULL: Final = Whole(1, 4096, or_null=True)
_EXPERTS: Final = Whole(1, 4096)
_FLAG: Final = OneOf((True, False))
_EPSILON: Final = Number(0.0, 1.0)
_FACTOR: Final = Number(-1e6, 1e6)
_POSITIONS: Final = Whole(1, 1 << 24)

#: Activations that transformers' modules compute by name.
_ACTIVATIONS: Final = OneOf(
    ("gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu", "relu2", "silu")
)

#: What each field may be, wherever an architecture has it.
FIELDS: Final[Mapping[str, Rule]] = {
    # Sizes
    "vocab_size": Whole(1, 1 << 24),
    "hidden_size": _SIZE,
    "n_embd": _SIZE,
    "intermediate_size": _SIZE,
    "n_inner": _SIZE_OR_NULL,
    "ffn_dim": _SIZE,
    "word_embed_proj_dim": _SIZE_OR_NULL,
    "num_hidden_layers": _LAYERS,
    "n_layer": _LAYERS,
    "num_attention_heads": _HEADS,
    "n_head": _HEADS,
    "num_key_value_heads": _HEADS_OR_NULL,
    "head_dim": Whole(2, 4096, or_null=True),
    "max_position_embeddings": _POSITIONS,
    "n_positions": _POSITIONS,
    "n_ctx": _POSITIONS,
    "original_max_position_embeddings": _POSITIONS,
    # Products and what is added to them
    "hidden_act": _ACTIVATIONS,
    "hidden_activation": OneOf((None, *_ACTIVATIONS.values)),
    "activation_function": _ACTIVATIONS,
    "attention_bias": _FLAG,
    "attention_out_bias": _FLAG,
    "mlp_bias": _FLAG,
    "qkv_bias": _FLAG,
    "use_bias": _FLAG,
    "use_qkv_bias": _FLAG,
    "enable_bias": _FLAG,
    "tie_word_embeddings": _FLAG,
    "use_parallel_residual": _FLAG,
    # Norms
    "rms_norm_eps": _EPSILON,
    "layer_norm_eps": _EPSILON,
    "layer_norm_epsilon": _EPSILON,
    "norm_epsilon": _EPSILON,
    "norm_eps": _EPSILON,
    "qk_layernorm": _FLAG,
    "use_qk_norm": _FLAG,
    "do_layer_norm_before": _FLAG,
    "layer_norm_elementwise_affine": _FLAG,
    "_remove_final_layer_norm": _FLAG,
    "use_post_norm": _FLAG,
    "scale_embedding": _FLAG,
    # Factors
    "logit_scale": _FACTOR,
    "logits_scaling": Number(1e-6, 1e6),
    "embedding_multiplier": _FACTOR,
    "residual_multiplier": _FACTOR,
    "attention_multiplier": Number(-1e6, 1e6, or_null=True),
    "query_pre_attn_scalar": Number(1e-6, 1e6),
    "final_logit_softcapping": Number(1e-6, 1e6, or_null=True),
    "attn_logit_softcapping": OneOf((None,)),
    "clip_qkv": Number(1e-6, 1e6, or_null=True),
    "scale_attn_weights": _FLAG,
    "scale_attn_by_inverse_layer_idx": _FLAG,
    "reorder_and_upcast_attn": OneOf((False,)),
    "attention_softmax_in_fp32": _FLAG,
    "scale_attention_softmax_in_fp32": _FLAG,
    # What a token sees
    "sliding_window": Whole(1, 1 << 24, or_null=True),
    "use_sliding_window": _FLAG,
    "max_window_layers": Whole(0, 1 << 24),
    "layer_types": ListOf(("full_attention", "sliding_attention")),
    "sliding_window_pattern": Whole(1, 512),
    "_sliding_window_pattern": Whole(1, 512),
    "use_bidirectional_attention": OneOf((False, None)),
    "multi_query": _FLAG,
    # Rotations; what is in a "rope_scaling" stands in ROPE_FIELDS
    "rope_theta": Number(1.0, 1e12),
    "rotary_emb_base": Number(1.0, 1e12),
    "rope_local_base_freq": Number(1.0, 1e12),
    "partial_rotary_factor": Number(1e-3, 1.0),
    "rotary_pct": Number(1e-3, 1.0),
    "no_rope_layers": ListOf((0, 1)),
    "no_rope_layer_interval": Whole(1, 512),
    # Mixtures of experts
    "num_local_experts": _EXPERTS,
    "num_experts": _EXPERTS,
    "n_routed_experts": _EXPERTS,
    "moe_num_experts": _EXPERTS,
    "num_experts_per_tok": _EXPERTS,
    "moe_k": _EXPERTS,
    "n_shared_experts": Whole(0, 4096),
    "moe_num_shared_experts": Whole(0, 4096),
    "moe_intermediate_size": _SIZE,
    "shared_expert_intermediate_size": _SIZE,
    "norm_topk_prob": _FLAG,
    "decoder_sparse_step": Whole(1, 512),
    "mlp_only_layers": Numbers(0, or_null=True),
    "first_k_dense_replace": Whole(0, 512),
    "routed_scaling_factor": _FACTOR,
    "n_group": _EXPERTS,
    "topk_group": _EXPERTS,
    "moe_layer_start_index": Whole(0, 512),
    "moe_layer_end_index": Whole(-1, 512),
    "moe_layer_interval": Whole(1, 512),
    "moe_norm_min": Number(0.0, 1.0),
    "shared_intermediate_size": Whole(0, 1 << 20),
    # Older names, which transformers does not read any more: only where they say what it computes
    "norm_type": OneOf(("layer_norm",)),
    "mlp_type": OneOf(("default",)),
    # Layers that guess further tokens: the next one does not depend on them
    "num_nextn_predict_layers": Whole(0, 16),
    "num_mtp_layers": Whole(0, 16),
}

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
#: Fields of any config.json that say nothing about which logits follow from tokens: names, ids,
#: what only training reads, what generate() would have as its defaults.
WITHOUT_EFFECT: Final = frozenset(_WITHOUT_EFFECT.split())

#: Fields of any config.json that may only say this; null is the same as not there.
FIXED: Final[Mapping[str, tuple[Any, ...]]] = {
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

#: Of each kind of rotations: what it needs, and what it may have.
ROPE_FIELDS: Final[Mapping[str, tuple[frozenset[str], frozenset[str]]]] = {
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
ROPE_RULES: Final[Mapping[str, Rule]] = {
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
    "short_factor": Numbers(1e-3),
    "long_factor": Numbers(1e-3),
    "rope_theta": FIELDS["rope_theta"],
    "partial_rotary_factor": FIELDS["partial_rotary_factor"],
}
