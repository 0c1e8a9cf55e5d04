"""A tiny checkpoint of every architecture that is accepted, in the forms that change its result."""

from typing import Any

SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
ALL_HEADS = {name: value for name, value in SIZES.items() if name != "num_key_value_heads"}
WINDOW = {"sliding_window": 8}
SLIDING = {**WINDOW, "use_sliding_window": True}
KINDS = {"layer_types": ["sliding_attention", "full_attention"] * 2}
EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}
ROUTED: dict[str, Any] = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
}
GPT: dict[str, Any] = {
    "vocab_size": 300,
    "n_positions": 128,
    "n_embd": 48,
    "n_layer": 3,
    "n_head": 6,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "logits_scaling": 2.0,
    "residual_multiplier": 0.7,
    "attention_multiplier": 0.2,
}

LINEAR = {"rope_type": "linear", "rope_theta": 1000.0, "factor": 3.0}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1000.0, "factor": 3.0}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
ODD_YARN = {
    **YARN,
    "beta_fast": 16.0,
    "beta_slow": 2.0,
    "mscale": 0.7,
    "mscale_all_dim": 1.1,
    "truncate": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def longrope(factors: int) -> dict[str, Any]:
    return {
        "rope_type": "longrope",
        "rope_theta": 1000.0,
        "short_factor": [1.0 + 0.3 * n for n in range(factors)],
        "long_factor": [2.0 + n for n in range(factors)],
        "original_max_position_embeddings": 100,
    }


#: By architecture, the forms of its config.json.
FORMS: dict[str, dict[str, dict[str, Any]]] = {
    "LlamaForCausalLM": {
        "plain": SIZES,
        "tied": {**SIZES, "tie_word_embeddings": True},
        "one key head": {**SIZES, "num_key_value_heads": 1},
        "wide heads": {**SIZES, "head_dim": 16, "rms_norm_eps": 1e-3},
        "biases": {**SIZES, "attention_bias": True, "mlp_bias": True},
        "linear": {**SIZES, "rope_parameters": LINEAR},
        "dynamic": {**SIZES, "rope_parameters": DYNAMIC},
        "yarn": {**SIZES, "rope_parameters": YARN},
        "odd yarn": {**SIZES, "rope_parameters": ODD_YARN},
        "yarn with attention_factor": {
            **SIZES,
            "rope_parameters": {**YARN, "attention_factor": 1.5},
        },
        "llama3": {**SIZES, "rope_parameters": LLAMA3},
    },
    "MistralForCausalLM": {
        "plain": {**SIZES, "sliding_window": None},
        "window": {**SIZES, **WINDOW, "head_dim": 16},
    },
    "Qwen2ForCausalLM": {
        "plain": SIZES,
        "unused window": {**SIZES, **WINDOW, "use_sliding_window": False},
        "upper layers": {**SIZES, **SLIDING, "max_window_layers": 2},
        "mixed layers": {**SIZES, **SLIDING, **KINDS},
        "yarn": {**SIZES, "rope_parameters": YARN},
    },
    "Qwen3ForCausalLM": {
        "plain": {**SIZES, "head_dim": 16},
        "biases": {**SIZES, "head_dim": 8, "attention_bias": True},
        "mixed layers": {**SIZES, "head_dim": 8, **SLIDING, **KINDS},
    },
    "ArceeForCausalLM": {"plain": SIZES, "yarn": {**SIZES, "rope_parameters": YARN}},
    "CohereForCausalLM": {
        "plain": {**SIZES, "logit_scale": 0.5},
        "norms of heads": {**SIZES, "use_qk_norm": True},
    },
    "Cohere2ForCausalLM": {
        "plain": {**SIZES, **WINDOW, "logit_scale": 0.5},
        "mixed layers": {**SIZES, **WINDOW, **KINDS},
    },
    "Ernie4_5ForCausalLM": {
        "plain": {**SIZES, "head_dim": 8},
        "biases": {**SIZES, "head_dim": 16, "use_bias": True},
    },
    "Exaone4ForCausalLM": {
        "plain": {**SIZES, **WINDOW},
        "mixed layers": {**SIZES, **WINDOW, **KINDS, "rope_parameters": LLAMA3},
        "no window": {**SIZES, "sliding_window": None, "layer_types": ["full_attention"] * 4},
    },
    "GemmaForCausalLM": {"plain": {**SIZES, "head_dim": 16}},
    "Gemma3ForCausalLM": {
        "plain": {**SIZES, **WINDOW, "head_dim": 8},
        "scales": {
            **SIZES,
            **WINDOW,
            **KINDS,
            "head_dim": 16,
            "query_pre_attn_scalar": 24,
            "final_logit_softcapping": 2.0,
        },
        "rotations by layer": {
            **SIZES,
            **WINDOW,
            **KINDS,
            "head_dim": 8,
            "rope_parameters": {
                "full_attention": LINEAR,
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        },
    },
    "GlmForCausalLM": {"plain": {**SIZES, "head_dim": 8}},
    "Glm4ForCausalLM": {"plain": {**SIZES, "head_dim": 8, "attention_bias": False}},
    "GPT2LMHeadModel": {
        "plain": GPT,
        "scales": {**GPT, "scale_attn_by_inverse_layer_idx": True, "n_inner": 64},
        "unscaled": {**GPT, "scale_attn_weights": False, "activation_function": "relu"},
    },
    "GPTBigCodeForCausalLM": {"plain": GPT, "all heads": {**GPT, "multi_query": False}},
    "GPTNeoXForCausalLM": {
        "plain": ALL_HEADS,
        "one after the other": {**ALL_HEADS, "use_parallel_residual": False},
        "no biases": {**ALL_HEADS, "attention_bias": False, "rope_parameters": LINEAR},
    },
    "GraniteForCausalLM": {"plain": {**SIZES, **MULTIPLIERS}},
    "GraniteMoeForCausalLM": {
        "plain": {**SIZES, **MULTIPLIERS, "num_local_experts": 4, "num_experts_per_tok": 2}
    },
    "MixtralForCausalLM": {
        "plain": {**SIZES, "num_local_experts": 4},
        "window": {**SIZES, **WINDOW, "num_local_experts": 4},
    },
    "NemotronForCausalLM": {"plain": {**SIZES, "head_dim": 8}},
    "OlmoForCausalLM": {"plain": SIZES, "clipped": {**SIZES, "clip_qkv": 0.3}},
    "Olmo2ForCausalLM": {"plain": SIZES},
    "Olmo3ForCausalLM": {
        "plain": {**SIZES, **WINDOW},
        "mixed layers": {**SIZES, **WINDOW, **KINDS},
    },
    "OlmoeForCausalLM": {
        "plain": {**SIZES, "num_experts": 4, "num_experts_per_tok": 2},
        "clipped": {**SIZES, "num_experts": 4, "num_experts_per_tok": 2, "clip_qkv": 0.3},
    },
    "OPTForCausalLM": {
        "plain": {
            **{n: v for n, v in ALL_HEADS.items() if n != "intermediate_size"},
            "ffn_dim": 64,
            "word_embed_proj_dim": 48,
        },
        "norm behind": {
            **{n: v for n, v in ALL_HEADS.items() if n != "intermediate_size"},
            "ffn_dim": 64,
            "word_embed_proj_dim": 24,
            "do_layer_norm_before": False,
        },
    },
    "PhiForCausalLM": {"plain": SIZES, "norms of heads": {**SIZES, "qk_layernorm": True}},
    "Phi3ForCausalLM": {
        "plain": SIZES,
        "window": {**SIZES, **WINDOW},
        "longrope": {
            **SIZES,
            "original_max_position_embeddings": 100,
            "rope_parameters": longrope(4),
        },
    },
    "Qwen2MoeForCausalLM": {
        "plain": {**SIZES, **EXPERTS, "shared_expert_intermediate_size": 32},
        "mixed layers": {
            **SIZES,
            **EXPERTS,
            **SLIDING,
            **KINDS,
            "shared_expert_intermediate_size": 32,
            "mlp_only_layers": [1],
            "qkv_bias": False,
        },
    },
    "Qwen3MoeForCausalLM": {
        "plain": {**SIZES, **EXPERTS, "head_dim": 8, "decoder_sparse_step": 2},
        "window": {**SIZES, **EXPERTS, **SLIDING, "head_dim": 8},
    },
    "SeedOssForCausalLM": {"plain": {**SIZES, "head_dim": 8, "attention_out_bias": True}},
    "SmolLM3ForCausalLM": {
        "plain": SIZES,
        "windows": {**SIZES, **SLIDING, "no_rope_layers": [1, 0, 1, 0]},
    },
    "StableLmForCausalLM": {
        "plain": {**SIZES, "use_qkv_bias": True},
        "parallel": {**SIZES, "qk_layernorm": True, "use_parallel_residual": True},
    },
    "Starcoder2ForCausalLM": {
        "plain": {**SIZES, "sliding_window": None},
        "window": {**SIZES, **WINDOW, "use_bias": False},
    },
    "ApertusForCausalLM": {"plain": SIZES},
    "BioGptForCausalLM": {"plain": ALL_HEADS, "unscaled": {**ALL_HEADS, "scale_embedding": False}},
    "CwmForCausalLM": {"plain": {**SIZES, **WINDOW, **KINDS, "head_dim": 8}},
    "Dots1ForCausalLM": {
        "plain": {**SIZES, **ROUTED, "first_k_dense_replace": 1},
        "mixed layers": {**SIZES, **ROUTED, **WINDOW, **KINDS, "first_k_dense_replace": 1},
    },
    "Ernie4_5_MoeForCausalLM": {
        "plain": {
            **SIZES,
            "moe_num_experts": 4,
            "moe_k": 2,
            "moe_intermediate_size": 32,
            "use_bias": True,
        }
    },
    "FlexOlmoForCausalLM": {"plain": {**SIZES, "num_experts": 4, "num_experts_per_tok": 2}},
    "Glm4MoeForCausalLM": {
        "plain": {**SIZES, **ROUTED, "head_dim": 8, "first_k_dense_replace": 1},
        "norms of heads": {
            **SIZES,
            **ROUTED,
            "head_dim": 8,
            "first_k_dense_replace": 1,
            "use_qk_norm": True,
        },
    },
    "GraniteMoeSharedForCausalLM": {
        "plain": {
            **SIZES,
            **MULTIPLIERS,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 32,
        }
    },
    "HeliumForCausalLM": {"plain": {**SIZES, "head_dim": 8}},
    "HyperCLOVAXForCausalLM": {"plain": {**SIZES, **MULTIPLIERS}},
    "MiniMaxM2ForCausalLM": {
        "plain": {**SIZES, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2}
    },
    "MinistralForCausalLM": {"plain": {**SIZES, "head_dim": 8, **WINDOW, **KINDS}},
    "NanoChatForCausalLM": {"plain": {**SIZES, "final_logit_softcapping": 2.0}},
    "PersimmonForCausalLM": {"plain": ALL_HEADS},
    "SolarOpenForCausalLM": {
        "plain": {
            **{n: v for n, v in SIZES.items() if n != "intermediate_size"},
            **ROUTED,
            "head_dim": 8,
        }
    },
}
