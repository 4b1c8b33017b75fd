"""The vocabulary at both ends of the model, split over the ranks."""

from torch import Tensor
from torch.nn import functional

from ..tensor_parallel import TensorParallelGroup
from .linear import linear


class VocabularyEmbedding:
    """Token ids to vectors. Rank r holds rows [r * n, (r + 1) * n) of the table, zeros past the vocabulary's end."""

    def __init__(self, weight: Tensor, group: TensorParallelGroup):
        self.weight = weight  # [n, hidden]
        self._group = group

    def __call__(self, token_ids: Tensor) -> Tensor:
        """[tokens] i64 -> [tokens, hidden]."""
        if self._group.size == 1:
            return functional.embedding(token_ids, self.weight)
        local = token_ids - self._group.rank * self.weight.shape[0]
        elsewhere = (local < 0) | (local >= self.weight.shape[0])
        vectors = functional.embedding(local.masked_fill(elsewhere, 0), self.weight)
        return self._group.all_reduce(vectors.masked_fill(elsewhere.unsqueeze(1), 0.0))


class OutputHead:
    """Vectors to logits over the whole vocabulary, on every rank. `weight` is split as in VocabularyEmbedding."""

    def __init__(self, weight: Tensor, vocab_size: int, group: TensorParallelGroup):
        self.weight = weight  # [n, hidden]
        self._vocab_size = vocab_size
        self._group = group

    def __call__(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> [rows, vocab] float32."""
        logits = self._group.all_gather(linear(hidden, self.weight), dim=1)
        return logits[:, : self._vocab_size].float()
