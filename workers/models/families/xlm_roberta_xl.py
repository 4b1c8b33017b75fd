"""XLM-RoBERTa XL and XXL: as XLM-RoBERTa, with pre-norms and without a norm of the embeddings."""

from dataclasses import replace

from .roberta import ROBERTA

NAMES = replace(
    ROBERTA.weight_names,
    embedding_norm="",
    attention_norm="roberta.encoder.layer.{}.attention.self_attn_layer_norm.weight",
    mlp_norm="roberta.encoder.layer.{}.LayerNorm.weight",
    final_norm="roberta.encoder.LayerNorm.weight",
)
XLM_ROBERTA_XL = replace(
    ROBERTA, name="xlm_roberta_xl", architectures=("XLMRobertaXLModel",), weight_names=NAMES, is_post_norm=False
)
