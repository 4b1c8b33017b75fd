"""The interface of heads, which draft from hidden states of a target."""

from typing import Protocol

from torch import Tensor

from ...batch.input_batch import InputBatch
from ...geometry.geometry import Geometry
from ...kv.kv_cache import KVCache


class LoadedHead(Protocol):
    """A head, whole on its rank. The input of a position is a pair: hidden states of token p, and token p + 1.

    Its result predicts token p + 2. After a draft the head's own hidden state replaces the target's, which has not
    computed that token.
    """

    @property
    def geometry(self) -> Geometry:
        """Of one layer."""
        ...

    @property
    def tapped(self) -> tuple[int, ...]:
        """The target's layers whose inputs the head reads, as in Taps."""
        ...

    @property
    def weights_bytes(self) -> int:
        """The bytes that the head takes in addition to the target's."""
        ...

    def new_cache(self, num_blocks: int, block_size: int) -> KVCache:
        """A cache of the head's own keys and values. Raises ConfigError if memory is short."""
        ...

    def joined(self, tapped: Tensor) -> Tensor:
        """[tokens, len(tapped) * hidden] -> [tokens, hidden]: the hidden states of pairs."""
        ...

    def forward(self, batch: InputBatch, hidden: Tensor, cache: KVCache) -> Tensor:
        """The head's own hidden states [tokens, hidden], in memory of their own. Writes K and V to `cache`.

        A pair is a hidden state, in `hidden` [tokens, hidden], and a token, in `batch`.
        """
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """[n, hidden] -> [n, vocabulary of drafts] float32, valid until the next call."""
        ...

    def best(self, hidden: Tensor) -> Tensor:
        """The likeliest token of the target after each position: [n] i64."""
        ...
