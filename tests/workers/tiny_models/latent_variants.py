"""The variants of checkpoints.py with latent attention."""

from typing import Any

YARN_ROPE = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LATENT: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 40,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16,
    "v_head_dim": 20,
    "n_routed_experts": 12,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 1,
    "rope_parameters": YARN_ROPE | {"mscale": 0.8, "mscale_all_dim": 0.6},
}
# Heads enough that no two scores are 0, whose order is not defined in transformers.
INDEXER = {"index_topk": 24, "index_head_dim": 20, "index_n_heads": 16}
LATENT_VARIANTS: dict[str, dict[str, Any]] = {
    "deepseek-v2": {
        "family": "DeepseekV2",
        **LATENT,
        "topk_method": "group_limited_greedy",
        "n_shared_experts": 2,
        "routed_scaling_factor": 16.0,
    },
    "deepseek-v2-lite": {
        "family": "DeepseekV2",
        **LATENT,
        "q_lora_rank": None,
        "kv_lora_rank": 36,
        "n_group": 1,
        "topk_group": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
    },
    "deepseek-v3": {"family": "DeepseekV3", **LATENT, "n_shared_experts": 1, "routed_scaling_factor": 2.5},
    "deepseek-v3-halves": {"family": "DeepseekV3", **LATENT, "q_lora_rank": None, "rope_interleave": False},
    "deepseek-v3.2": {"family": "DeepseekV32", **LATENT, "num_key_value_heads": 4, **INDEXER},
    "glm-5": {
        "family": "GlmMoeDsa",
        **LATENT,
        **INDEXER,
        "num_hidden_layers": 4,
        "kv_lora_rank": 36,
        "n_group": 1,
        "topk_group": 1,
        "index_n_heads": 13,
        "indexer_types": ["full", "shared", "full", "shared"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
    },
    "glm4-moe-lite": {
        "family": "Glm4MoeLite",
        **LATENT,
        "first_k_dense_replace": 0,
        "mlp_layer_types": ["sparse", "dense", "sparse"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
    },
    "mistral4": {
        "family": "Mistral4",
        **LATENT,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 2.0,
        "rope_parameters": YARN_ROPE | {"mscale": 0.8, "mscale_all_dim": 0.6, "llama_4_scaling_beta": 0.3},
    },
    "minicpm3": {
        "family": "MiniCPM3",
        "scale_emb": 4,
        "scale_depth": 4.0,
        **{name: LATENT[name] for name in LATENT if "head_dim" in name or "lora" in name},
        "num_key_value_heads": 4,
        "v_head_dim": None,
        "dim_model_base": 64,
        "tie_word_embeddings": False,
        "max_position_embeddings": 512,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 1000.0,
            "original_max_position_embeddings": 512,
            "short_factor": [1.0 + 0.1 * pair for pair in range(8)],
            "long_factor": [1.5 + 0.5 * pair for pair in range(8)],
        },
    },
    "youtu": {
        "family": "Youtu",
        **{name: LATENT[name] for name in LATENT if "head_dim" in name or "lora" in name},
        "num_key_value_heads": 4,
        "rope_parameters": YARN_ROPE | {"mscale": 0.8, "mscale_all_dim": 0.6},
        "tie_word_embeddings": False,
    },
}
