"""ERNIE 1 to 3, encoders: as BERT; later models add the embedding of a task to each token."""

from dataclasses import replace

from ...checkpoint.hf_config import HFConfig
from ...pooling.head import LabelLayer
from . import bert
from .family import Family

NAMES = bert.weight_names("ernie")
TASK_TYPES = "ernie.embeddings.task_type_embeddings.weight"


def adapted(family: Family, config: HFConfig) -> Family:
    names = replace(NAMES, task_types=TASK_TYPES) if config.use_task_id else NAMES
    return replace(family, weight_names=names)


ERNIE = replace(
    bert.BERT,
    name="ernie",
    architectures=("ErnieModel",),
    weight_names=NAMES,
    adapted=adapted,
    label_layers=(LabelLayer("ernie.pooler.dense", "tanh"), LabelLayer("classifier")),
)
