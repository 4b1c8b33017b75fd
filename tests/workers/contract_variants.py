"""The variants of checkpoints.py with recurrent layers, latent attention or experts: each keeps the whole contract."""

from .latent_variants import LATENT_VARIANTS
from .recurrent_variants import RECURRENT_VARIANTS

EXPERTS = (
    *("mixtral", "qwen2-moe", "qwen3-moe", "olmoe", "phimoe", "granitemoe", "glm4-moe", "glm4-moe-wide"),
    *("llama4-experts", "gpt-oss"),
)
CONTRACT_VARIANTS = (*RECURRENT_VARIANTS, *LATENT_VARIANTS, *EXPERTS)
