"""EuroBERT: Llama's layers with bidirectional attention."""

from dataclasses import replace

from ...pooling.head import LabelLayer
from ..names.weight_names import USUAL_NAMES
from .llama import LLAMA

EUROBERT = replace(
    LLAMA,
    name="eurobert",
    architectures=("EuroBertModel",),
    weight_names=replace(USUAL_NAMES, unused=(*USUAL_NAMES.unused, "lm_head.weight", "lm_head.bias")),
    is_bidirectional=True,
    label_pooling="late",
    label_layers=(LabelLayer("dense", "gelu"), LabelLayer("classifier")),
    token_label_layers=(LabelLayer("classifier"),),
)
