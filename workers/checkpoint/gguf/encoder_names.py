"""The tensors of encoders in GGUF files: their names in Hugging Face checkpoints."""

from .tensor_layout import TensorLayout
from .usual_names import LLAMA

_WHOLE = {
    "token_embd": "embeddings.word_embeddings",
    "position_embd": "embeddings.position_embeddings",
    "token_types": "embeddings.token_type_embeddings",
}
_BERT = {
    "attn_q": "attention.self.query",
    "attn_k": "attention.self.key",
    "attn_v": "attention.self.value",
    "attn_output": "attention.output.dense",
    "attn_output_norm": "attention.output.LayerNorm",
    "ffn_up": "intermediate.dense",
    "ffn_down": "output.dense",
    "layer_output_norm": "output.LayerNorm",
}
_NOMIC_BERT = {
    "attn_qkv": "attn.Wqkv",
    "attn_output": "attn.out_proj",
    "attn_output_norm": "norm1",
    "ffn_up": "mlp.fc11",
    "ffn_gate": "mlp.fc12",
    "ffn_down": "mlp.fc2",
    "layer_output_norm": "norm2",
}
_CLASSIFIER = {"cls": "classifier.dense", "cls.output": "classifier.out_proj"}
_MODERN_BERT = {
    "attn_norm": "attn_norm",
    "attn_qkv": "attn.Wqkv",
    "attn_output": "attn.Wo",
    "ffn_norm": "mlp_norm",
    "ffn_up": "mlp.Wi",
    "ffn_down": "mlp.Wo",
}
_MODERN_BERT_WHOLE = {
    "token_embd": "embeddings.tok_embeddings",
    "token_embd_norm": "embeddings.norm",
    "output_norm": "final_norm",
}
ENCODER_LAYOUTS = {
    "modern-bert": TensorLayout(_MODERN_BERT, whole=_MODERN_BERT_WHOLE, layer="layers.{}."),
    "eurobert": TensorLayout(LLAMA),
    "bert": TensorLayout(
        _BERT,
        whole=_WHOLE | _CLASSIFIER | {"token_embd_norm": "embeddings.LayerNorm"},
        layer="encoder.layer.{}.",
        own_names={"first_position": 0},  # RoBERTa's files lack the rows before it
    ),
    "nomic-bert": TensorLayout(_NOMIC_BERT, whole=_WHOLE | {"token_embd_norm": "emb_ln"}, layer="encoder.layers.{}."),
}
