"""The files of a model folder that say how vectors are made of hidden states: those of sentence-transformers."""

from typing import Any

from .fields.families.encoders import scores_labels
from .model import GgufModel

NONE, RANK = 0, 4
KINDS = {1: "mean", 2: "cls", 3: "lasttoken"}  # of <architecture>.pooling_type
NAMES = {NONE: "none", **KINDS, RANK: "rank"}
POOLING_FOLDER = "1_Pooling"


def pooling_files(model: GgufModel) -> dict[str, Any]:
    """File name -> its JSON; empty: the folder's default holds. Raises ConfigError for a kind that is not supported."""
    kind = model.whole("pooling_type", NONE)
    allowed = (NONE, 2, RANK) if scores_labels(model) else (NONE, *KINDS)
    if kind not in allowed:
        names = ", ".join(f"{each} ({NAMES[each]})" for each in allowed)
        raise model.refused(f"{model.architecture}.pooling_type={kind} is not supported here; supported: {names}")
    if kind not in KINDS or scores_labels(model):
        return {}
    modules = {"Transformer": "", "Pooling": POOLING_FOLDER, "Normalize": "2_Normalize"}
    return {
        "modules.json": [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{name}"}
            for index, (name, path) in enumerate(modules.items())
        ],
        f"{POOLING_FOLDER}/config.json": {"pooling_mode": KINDS[kind]},
    }
