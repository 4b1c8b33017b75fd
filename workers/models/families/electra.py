"""ELECTRA: as BERT; smaller models project the embeddings to the layers."""

from dataclasses import replace
from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...pooling.head import LabelLayer
from . import bert
from .family import Family

HEADS = ("dense", "dense_prediction", "LayerNorm")
NAMES = bert.weight_names("electra")
NAMES = replace(
    NAMES,
    project_in="electra.embeddings_project",
    unused=(
        *NAMES.unused,
        *bert.with_biases(*(f"discriminator_predictions.{name}" for name in HEADS)),
        *bert.with_biases(*(f"generator_predictions.{name}" for name in HEADS), "generator_lm_head"),
    ),
)


def config(fields: dict[str, Any]) -> dict[str, Any]:
    return bert.config(with_embedding_size(fields))


def with_embedding_size(fields: dict[str, Any]) -> dict[str, Any]:
    size = fields.get("embedding_size")
    return fields | {"word_embed_proj_dim": 128 if size is None else size}


def adapted(family: Family, config: HFConfig) -> Family:
    """Embeddings of the size of the layers are not projected."""
    if config.word_embed_proj_dim != config.hidden_size:
        return family
    return replace(family, weight_names=replace(NAMES, project_in=""))


ELECTRA = replace(
    bert.BERT,
    name="electra",
    architectures=("ElectraModel",),
    weight_names=NAMES,
    config=config,
    adapted=adapted,
    label_layers=(LabelLayer("classifier.dense", "gelu"), LabelLayer("classifier.out_proj")),
)
