"""The variants of checkpoints.py of further dense families whose feed-forward has no gate."""

from typing import Any

UNGATED_VARIANTS: dict[str, dict[str, Any]] = {
    "persimmon": {
        "family": "Persimmon",
        "intermediate_size": 160,
        "layer_norm_eps": 0.05,
        "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5, "rope_theta": 1000.0},
    },
    "xglm": {"family": "XGLM", "ffn_dim": 96, "pad_token_id": 1, "bos_token_id": 0, "tie_word_embeddings": False},
    "xglm-unscaled": {"family": "XGLM", "ffn_dim": 96, "scale_embedding": False, "activation_function": "relu"},
    "biogpt": {"family": "BioGpt", "tie_word_embeddings": False},
    "biogpt-unscaled": {"family": "BioGpt", "scale_embedding": False, "hidden_act": "relu"},
    "openai-gpt": {"family": "OpenAIGPT", "n_positions": 512},
    "openai-gpt-relu": {"family": "OpenAIGPT", "n_positions": 200, "afn": "relu", "tie_word_embeddings": False},
    "persimmon-without-norms": {"family": "Persimmon", "qk_layernorm": False, "hidden_act": "gelu"},
}
