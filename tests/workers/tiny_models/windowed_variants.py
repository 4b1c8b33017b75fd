"""Variants of dense decoders of which some layers have windows, in the form of dense_variants.py."""

from typing import Any

WINDOWED_VARIANTS: dict[str, dict[str, Any]] = {
    "modernbert-decoder": {
        "family": "ModernBertDecoder",
        "num_hidden_layers": 4,
        "local_attention": 80,
        "tie_word_embeddings": False,
        "norm_eps": 0.01,
    },
    "modernbert-decoder-tied": {"family": "ModernBertDecoder", "layer_types": ["sliding_attention"] * 3},
    "granite-swa": {
        "family": "GraniteSWA",
        "embedding_multiplier": 12.0,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.0625,
        "logits_scaling": 8.0,
        "sliding_window": 40,
        "layer_rope_theta": [5000.0, 0, 100.0],
    },
    "ministral": {
        "family": "Ministral",
        "head_dim": 32,
        "sliding_window": 24,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "cwm": {"family": "Cwm", "num_hidden_layers": 5, "head_dim": 32, "sliding_window": 24, "mlp_bias": True},
    "vaultgemma": {
        "family": "VaultGemma",
        "head_dim": 32,
        "sliding_window": 40,
        "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 9.0,
        "tie_word_embeddings": False,
    },
}
