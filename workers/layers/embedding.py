"""The token embedding, inputs of single layers and the output head, whose vocabulary is divided among the ranks.

Rank r holds rows [r * n, (r + 1) * n) of each table, with zeros past the vocabulary's end.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor
from torch.nn import functional

from ..distributed.tensor_parallel import TensorParallelGroup
from .linear import Linear, Product, linear
from .norm import Norm
from .ops import Ops


class Table(Protocol):
    """A lookup table of vectors."""

    num_rows: int

    def rows(self, indices: Tensor) -> Tensor:
        """The rows of `indices` [tokens] i64, [tokens, hidden]; zeros for an index outside the table."""
        ...


class TiedTable(Table, Linear, Protocol):
    """One copy of a matrix that is both the embedding table and the output head's weight."""


class TorchTable:
    """The TiedTable of plain torch, on any device."""

    def __init__(self, weight: Tensor, product: Product = linear, multiplier: float = 1.0):
        self.weight = weight  # [n, hidden]
        self.multiplier = multiplier  # applied to rows, not to products
        self.num_rows = weight.shape[0]
        self._product = product

    def rows(self, indices: Tensor) -> Tensor:
        absent = (indices < 0) | (indices >= self.num_rows)
        rows = functional.embedding(indices.masked_fill(absent, 0), self.weight).masked_fill_(absent.unsqueeze(1), 0.0)
        return rows if self.multiplier == 1.0 else rows.mul_(self.multiplier)

    def __call__(self, x: Tensor) -> Tensor:
        return self._product(x, self.weight, None)


class VocabularyEmbedding:
    """Maps token ids to vectors."""

    def __init__(self, table: Table, group: TensorParallelGroup):
        self.table = table
        self._group = group

    @property
    def without_adapters(self) -> "VocabularyEmbedding":
        """That of the base model, for passes whose tokens are not those of the model's step."""
        return self

    def __call__(self, token_ids: Tensor) -> Tensor:
        """[tokens] i64 -> [tokens, hidden], which the caller may overwrite."""
        if self._group.size == 1:
            return self.table.rows(token_ids)
        return self._group.all_reduce(self.table.rows(token_ids - self._group.rank * self.table.num_rows))


@dataclass(frozen=True, slots=True, eq=False)
class LayerInputs:
    """The inputs of all layers: the sum of a token's own vectors and of projections of its embedding, normalised."""

    size: int  # of a layer's vector
    table: VocabularyEmbedding  # of the vectors of all layers, one after another
    projection: Linear
    norm: Norm  # of each layer's part of the projection
    ops: Ops

    def __call__(self, token_ids: Tensor, hidden: Tensor) -> Tensor:
        """[tokens, layers * size]; `hidden` are the embedded tokens."""
        own = self.table(token_ids)
        normed = self.ops.norm(self.projection(hidden).view(-1, self.size), self.norm)
        self.ops.add(own.view(-1, self.size), normed)
        return own

    def of_layer(self, inputs: Tensor, layer: int) -> Tensor:
        return inputs[:, layer * self.size : (layer + 1) * self.size]


class OutputHead:
    """Maps vectors to logits over the whole vocabulary, on every rank."""

    def __init__(self, share: Linear, vocab_size: int, group: TensorParallelGroup):
        self.share = share  # [rows, hidden] -> [rows, n]
        self._vocab_size = vocab_size
        self._group = group

    def __call__(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """[rows, hidden] -> [rows, vocab] float32, valid until the next call; written to `out` if given."""
        logits = self._group.all_gather(self.share(hidden), dim=1)[:, : self._vocab_size]
        return logits.float() if out is None else out.copy_(logits)
