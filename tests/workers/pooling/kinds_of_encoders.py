"""Small encoders of each kind: the fields of their configs, and texts for them."""

import pytest

from ..tiny_models.checkpoints import random_tokens

WITH_OFFSET = {"max_position_embeddings": 258, "pad_token_id": 1}
ENCODERS = {
    "BertModel": {"max_position_embeddings": 256},
    "RobertaModel": {**WITH_OFFSET, "type_vocab_size": 1},
    "XLMRobertaModel": {**WITH_OFFSET, "type_vocab_size": 1},
    "CamembertModel": {**WITH_OFFSET, "type_vocab_size": 1},
    "Data2VecTextModel": {**WITH_OFFSET, "type_vocab_size": 1},
    "ModernBertModel": {"max_position_embeddings": 256, "local_attention": 32, "cls_token_id": 1, "sep_token_id": 2},
    "Gemma3TextModel": {
        "max_position_embeddings": 256,
        "use_bidirectional_attention": True,
        "sliding_window": 32,
        "sliding_window_pattern": 3,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "query_pre_attn_scalar": 24,
    },
    "MPNetModel": {"max_position_embeddings": 258},
    "NomicBertModel": {"max_position_embeddings": 256},
    "GteModel": {"max_position_embeddings": 256},
    "JinaEmbeddingsV3Model": {"max_position_embeddings": 256},
    "ElectraModel": {"max_position_embeddings": 256, "embedding_size": 32},
    "EuroBertModel": {"max_position_embeddings": 256, "mask_token_id": 3},
    "XLMRobertaXLModel": {**WITH_OFFSET, "type_vocab_size": 1},
    "ErnieModel": {"max_position_embeddings": 256, "use_task_id": True},
    "AlbertModel": {"max_position_embeddings": 256, "embedding_size": 32},
    "DebertaV2Model": {
        "max_position_embeddings": 256,
        "relative_attention": True,
        "position_biased_input": False,
        "position_buckets": 32,
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "pos_att_type": "p2c|c2p",
    },
    "DistilBertModel": {"max_position_embeddings": 256, "dim": 64, "hidden_dim": 96, "n_layers": 3, "n_heads": 4},
}


def tokens(count: int) -> list[int]:
    """Random tokens, without the padding tokens of these models."""
    return [token + 3 for token in random_tokens(count) if token < 190]


def in_turn(names, first):
    """Every second one makes the fast run, the others that of another test of heads."""
    return [
        pytest.param(name, marks=[] if place % 2 == first else [pytest.mark.nightly])
        for place, name in enumerate(names)
    ]
