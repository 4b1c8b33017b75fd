"""The token embedding and the output head, whose vocabulary is divided among the ranks.

Rank r holds rows [r * n, (r + 1) * n) of each table, with zeros past the vocabulary's end.
"""

from typing import Protocol

from torch import Tensor
from torch.nn import functional

from ..distributed.tensor_parallel import TensorParallelGroup
from .linear import Linear, Product, linear


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
