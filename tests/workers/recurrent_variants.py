"""Tiny models with recurrent layers, see checkpoints.py."""

from typing import Any

MAMBA2_LAYERS = {"mamba_n_heads": 8, "mamba_n_groups": 1, "mamba_d_state": 24, "mamba_chunk_size": 16}
RECURRENT_VARIANTS: dict[str, dict[str, Any]] = {
    "lfm2": {"family": "Lfm2", "num_hidden_layers": 5, "full_attn_idxs": [1, 4], "block_multiple_of": 32},
    "lfm2-states-in-larger-blocks": {
        "family": "Lfm2",
        "num_hidden_layers": 7,
        "num_key_value_heads": 1,
        "full_attn_idxs": [2],
        "conv_L_cache": 5,
        "conv_bias": True,
        "block_auto_adjust_ff_dim": False,
        "tie_word_embeddings": False,
    },
    "mamba2": {
        "family": "Mamba2",
        "num_heads": 8,
        "head_dim": 16,
        "n_groups": 2,
        "state_size": 24,
        "chunk_size": 16,
    },
    "mamba2-biased": {
        "family": "Mamba2",
        "num_heads": 4,
        "head_dim": 32,
        "n_groups": 1,
        "state_size": 16,
        "conv_kernel": 3,
        "use_bias": True,
        "use_conv_bias": False,
        "time_step_limit": (0.3, 0.9),
        "chunk_size": 16,
        "tie_word_embeddings": True,
    },
    "granite4": {
        "family": "GraniteMoeHybrid",
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
        "num_local_experts": 6,
        "shared_intermediate_size": 64,
        **MAMBA2_LAYERS,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.8,
        "attention_multiplier": 0.0625,
        "logits_scaling": 8.0,
    },
    "granite4-dense": {
        "family": "GraniteMoeHybrid",
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "num_local_experts": 0,
        "shared_intermediate_size": 96,
        "position_embedding_type": "rope",
        **MAMBA2_LAYERS,
    },
    "bamba": {"family": "Bamba", "attn_layer_indices": [1], **MAMBA2_LAYERS},
}
