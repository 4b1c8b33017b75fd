"""What encoders have in common: the vectors of a text's tokens, before the first layer."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...batch.input_batch import InputBatch
from ...layers.linear import Linear
from ..decoder import Model


@dataclass(frozen=True, slots=True, eq=False)
class EncoderModel(Model):
    """A Model that returns vectors, of batches that have whole prompts, each in one chunk."""

    token_types: Tensor | None  # [types, embedding size]; each token adds the row of its type; None: there are no types
    project_in: Linear | None  # from the normalised embeddings to the layers; None: sizes are equal

    def embedded(self, batch: InputBatch) -> Tensor:
        """The sum of each token's own, type and position embeddings, normalised: [tokens, hidden], the caller's own."""
        hidden = self.embedding(batch.token_ids)
        if self.token_types is not None:
            types = torch.zeros_like(batch.token_ids) if batch.token_types is None else batch.token_types
            hidden.add_(self.token_types.index_select(0, types))
        if self.positions is not None:
            hidden.add_(self.positions.rows(batch.positions))
        if self.embedding_norm is not None:
            self.ops.norm(hidden, self.embedding_norm, out=hidden)
        return hidden if self.project_in is None else self.project_in(hidden).clone()
