"""RoBERTa and XLM-RoBERTa: as BERT, with one token type; positions begin at pad_token_id + 1."""

from dataclasses import replace
from typing import Any

from ...pooling.head import LabelLayer
from . import bert
from .family import need

FIRST_POSITION = 2


def config(fields: dict[str, Any]) -> dict[str, Any]:
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
    architectures=("RobertaModel", "XLMRobertaModel"),
    weight_names=bert.weight_names("roberta", FIRST_POSITION),
    config=config,
    label_layers=(LabelLayer("classifier.dense", "tanh"), LabelLayer("classifier.out_proj")),
)
