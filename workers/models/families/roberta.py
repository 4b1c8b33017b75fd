"""RoBERTa and models that are named after it: as BERT, with one token type; positions begin at pad_token_id + 1."""

from dataclasses import replace
from typing import Any

from paged_serve.protocol.errors import ConfigError

from ...pooling.head import LabelLayer
from . import bert
from .family import need

FIRST_POSITION = 2


def config(fields: dict[str, Any]) -> dict[str, Any]:
    if fields.get("lora_adaptations"):
        raise ConfigError(
            "config.json: lora_adaptations is of the first format of jina-embeddings-v3, which is not supported; serve "
            "jinaai/jina-embeddings-v3-hf, which has the format of transformers"
        )
    found = bert.config({"pad_token_id": 1} | fields)
    need("RoBERTa", found, pad_token_id=FIRST_POSITION - 1)
    return without_first_positions(found)


def without_first_positions(found: dict[str, Any]) -> dict[str, Any]:
    """The same fields, with the number of positions that prompts can use."""
    if isinstance(count := found.get("max_position_embeddings"), int):
        found["max_position_embeddings"] = count - FIRST_POSITION
    return found


ROBERTA = replace(
    bert.BERT,
    name="roberta",
    architectures=("RobertaModel", "XLMRobertaModel", "CamembertModel"),
    weight_names=bert.weight_names("roberta", FIRST_POSITION),
    config=config,
    label_layers=(LabelLayer("classifier.dense", "tanh"), LabelLayer("classifier.out_proj")),
)
DATA2VEC_TEXT = replace(
    ROBERTA,
    name="data2vec_text",
    architectures=("Data2VecTextModel",),
    weight_names=bert.weight_names("data2vec_text", FIRST_POSITION),
)
