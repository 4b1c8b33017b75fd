"""Names of the tensors of a layer for multi-token prediction (MTP), which a checkpoint has besides its decoder."""

from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from typing import Any

from ...checkpoint.text_part import stored_name

DECODER_LAYER = "model.layers.{}."  # the beginning of a layer's names in WeightNames


@dataclass(frozen=True, slots=True)
class MtpNames:
    """The names; `{}` stands for the layer's number. The defaults are those of DeepSeek-V3 and GLM-4.5."""

    follows_last: bool = True  # the layer's number is that after the decoder's last; False: it is layer 0 of its own
    every: str = DECODER_LAYER  # the beginning of all of its names
    layer: str = DECODER_LAYER  # the beginning of those which it has as a decoder layer
    embedding_norm: str = "model.layers.{}.enorm.weight"
    hidden_norm: str = "model.layers.{}.hnorm.weight"
    joining: str = "model.layers.{}.eh_proj"  # from the embedding and the hidden state, in this order
    final_norm: str = "model.layers.{}.shared_head.norm.weight"
    embedding: str = "model.layers.{}.embed_tokens.weight"  # in files without it, and if "", the decoder's
    output_head: str = "model.layers.{}.shared_head.head.weight"  # likewise

    def found_in(self, tensors: Collection[str]) -> "MtpNames":
        """The names in this checkpoint, which may be that of a model with other parts."""
        names = {field: name for field, name in asdict(self).items() if isinstance(name, str)}
        found: dict[str, Any] = {field: stored_name(name, tensors) for field, name in names.items()}
        return replace(self, **found)


MTP_NAMES = MtpNames()
QWEN_MTP_NAMES = MtpNames(
    follows_last=False,
    every="mtp.",
    layer="mtp.layers.{}.",
    embedding_norm="mtp.pre_fc_norm_embedding.weight",
    hidden_norm="mtp.pre_fc_norm_hidden.weight",
    joining="mtp.fc",
    final_norm="mtp.norm.weight",
    embedding="",
    output_head="",
)
