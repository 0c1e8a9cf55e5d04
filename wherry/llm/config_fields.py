"""Which values may each field of a config.json have, so that it is computed exactly?

Tables only: rules for values, and the fields of all architectures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

# What a value may be


@dataclass(frozen=True, slots=True)
class Whole:
    """An integer within these bounds."""

    least: int
    most: int
    or_null: bool = False


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number within these bounds."""

    least: float
    most: float
    or_null: bool = False


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of these values, with the same type."""

    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list with one value for each layer."""

    values: tuple[Any, ...]
    or_null: bool = True


@dataclass(frozen=True, slots=True)
class Numbers:
    """A list of finite numbers within these bounds."""

    least: float
    most: float = 1e6
    or_null: bool = False


@dataclass(frozen=True, slots=True)
class Derived:
    """The value that transformers derives from other fields and ignores in the file: the file must
    have that value."""

    what: str


@dataclass(frozen=True, slots=True)
class Only:
    """Any value, provided that another field disables it."""

    beside: str
    value: Any


Rule = Whole | Number | OneOf | ListOf | Numbers | Derived | Only

#: Derived values.
HEAD_SIZE: Final = "the hidden size / num_attention_heads"
ONE_OR_ALL_HEADS: Final = "1 with multi_query, else n_head"

#: Bounds of sizes: several times those of any published decoder. A file beyond them is damaged or
#: hostile: building its modules would take all memory or minutes.
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

#: Activations that transformers has by name.
_ACTIVATIONS: Final = OneOf(
    ("gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu", "relu2", "silu")
)

#: The rule of each field, in whatever architecture it occurs.
FIELDS: Final[Mapping[str, Rule]] = {
    name: rule
    for rule, names in (
        # Sizes
        (Whole(1, 1 << 24), "vocab_size"),
        (_SIZE, "hidden_size n_embd intermediate_size ffn_dim"),
        (_SIZE_OR_NULL, "n_inner word_embed_proj_dim"),
        (_LAYERS, "num_hidden_layers n_layer"),
        (_HEADS, "num_attention_heads n_head"),
        (_HEADS_OR_NULL, "num_key_value_heads"),
        (Whole(2, 4096, or_null=True), "head_dim"),
        (_POSITIONS, "max_position_embeddings n_positions n_ctx original_max_position_embeddings"),
        # Linear layers and biases
        (_ACTIVATIONS, "hidden_act activation_function"),
        (OneOf((None, *_ACTIVATIONS.values)), "hidden_activation"),
        (
            _FLAG,
            "attention_bias attention_out_bias mlp_bias qkv_bias use_bias use_qkv_bias "
            "enable_bias tie_word_embeddings use_parallel_residual",
        ),
        # Norms
        (_EPSILON, "rms_norm_eps layer_norm_eps layer_norm_epsilon norm_epsilon norm_eps"),
        (
            _FLAG,
            "qk_layernorm use_qk_norm do_layer_norm_before layer_norm_elementwise_affine "
            "_remove_final_layer_norm use_post_norm scale_embedding",
        ),
        # Factors
        (_FACTOR, "logit_scale embedding_multiplier residual_multiplier"),
        (Number(1e-6, 1e6), "logits_scaling query_pre_attn_scalar"),
        (Number(-1e6, 1e6, or_null=True), "attention_multiplier"),
        (Number(1e-6, 1e6, or_null=True), "final_logit_softcapping clip_qkv"),
        (OneOf((None,)), "attn_logit_softcapping"),
        (
            _FLAG,
            "scale_attn_weights scale_attn_by_inverse_layer_idx attention_softmax_in_fp32 "
            "scale_attention_softmax_in_fp32",
        ),
        (OneOf((False,)), "reorder_and_upcast_attn"),
        # Attention windows
        (Whole(1, 1 << 24, or_null=True), "sliding_window"),
        (_FLAG, "use_sliding_window multi_query"),
        (Whole(0, 1 << 24), "max_window_layers"),
        (ListOf(("full_attention", "sliding_attention")), "layer_types"),
        (Whole(1, 512), "sliding_window_pattern _sliding_window_pattern"),
        (OneOf((False, None)), "use_bidirectional_attention"),
        # Rotary embeddings; the members of "rope_scaling" are in ROPE_FIELDS
        (Number(1.0, 1e12), "rope_theta rotary_emb_base rope_local_base_freq"),
        (Number(1e-3, 1.0), "partial_rotary_factor rotary_pct"),
        (ListOf((0, 1)), "no_rope_layers"),
        (Whole(1, 512), "no_rope_layer_interval"),
        # Mixtures of experts
        (
            _EXPERTS,
            "num_local_experts num_experts n_routed_experts moe_num_experts "
            "num_experts_per_tok moe_k n_group topk_group",
        ),
        (Whole(0, 4096), "n_shared_experts moe_num_shared_experts"),
        (_SIZE, "moe_intermediate_size shared_expert_intermediate_size"),
        (_FLAG, "norm_topk_prob"),
        (Whole(1, 512), "decoder_sparse_step moe_layer_interval"),
        (Numbers(0, or_null=True), "mlp_only_layers"),
        (Whole(0, 512), "first_k_dense_replace moe_layer_start_index"),
        (_FACTOR, "routed_scaling_factor"),
        (Whole(-1, 512), "moe_layer_end_index"),
        (Number(0.0, 1.0), "moe_norm_min"),
        (Whole(0, 1 << 20), "shared_intermediate_size"),
        # Obsolete names that transformers ignores: only with the value that it computes
        (OneOf(("layer_norm",)), "norm_type"),
        (OneOf(("default",)), "mlp_type"),
        # Layers for multi-token prediction: the next token does not depend on them
        (Whole(0, 16), "num_nextn_predict_layers num_mtp_layers"),
    )
    for name in names.split()
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
#: Fields that do not affect the logits: names, ids, training options, defaults of generate().
WITHOUT_EFFECT: Final = frozenset(_WITHOUT_EFFECT.split())

#: Fields that may have only these values; null means absent.
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

#: For each type of rotary scaling: required fields, optional fields.
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
