"""Reads the indexer of sparse attention, the same on every rank and never quantized."""

import torch
from torch import Tensor

from ...checkpoint.matrix_reader import MatrixPart
from ...checkpoint.weight_forms import Weight, float_values
from ...geometry.layer_options import Indexer, Latent
from ...layers.attention import AttentionBackend, KeySelector
from ...layers.norm import LayerNorm
from ...layers.ops import Ops
from ...mixers.latent_attention import LayerIndexer
from .layer_reader import LayerReader

NORM_EPS = 1e-6  # of the norms between projections, whatever rms_norm_eps is


class IndexerReader:
    """Reads a layer's indexer, or finds that of the layer whose choice it takes.

    A layer for multi-token prediction, which is read without those before it, has its own.
    """

    def __init__(self, reader: LayerReader, ops: Ops, backend: AttentionBackend):
        self._reader = reader
        self._ops = ops
        self._backend = backend
        self._selectors: dict[int, KeySelector] = {}  # by layer

    def read(self, index: int, sizes: Latent) -> tuple[KeySelector | None, LayerIndexer | None]:
        """What chooses the layer's keys, and the indexer if it is the layer's own. None: it has no choice."""
        if (indexer := sizes.indexer) is None:
            return None, None
        if (found := self._selectors.get(indexer.source(index))) is not None:
            return found, None
        reader = self._reader
        selector = self._selectors[index] = reader.backend.key_selector(index, sizes, self._backend)
        names, hidden, width = reader.names.latent, reader.geometry.hidden_size, indexer.head_dim
        order = _order(sizes, indexer)
        heads = (torch.arange(indexer.num_heads).unsqueeze(1) * width + order).flatten()
        keys = self._weight(names.index_keys.format(index), hidden, order)
        queries = self._weight(names.index_queries.format(index), sizes.query_rank, heads)
        weights = self._weight(names.index_weights.format(index), hidden, torch.arange(indexer.num_heads))
        weight, bias = (
            reader.vector(f"{names.index_norm.format(index)}.{part}", width).float()[order.to(reader.device)]
            for part in ("weight", "bias")
        )
        norm, linear = LayerNorm(weight, bias, NORM_EPS), reader.backend.linear
        parts = linear(keys), norm, linear(queries), reader.backend.head(weights)
        return selector, LayerIndexer(*parts, selector, self._ops)

    def _weight(self, name: str, inputs: int, order: Tensor) -> Weight:
        """Its rows in `order`, in the model's dtype."""
        reader = self._reader

        def read() -> list[Weight]:
            part = MatrixPart((len(order), inputs), 0, 0, len(order))
            stored = float_values(reader.matrix(reader.source.stored, name, part)).to(reader.geometry.dtype)
            return [reader.backend.accepted(stored[order].contiguous(), stored.dtype)]

        (weight,) = reader.weights(name, read)
        return weight


def _order(sizes: Latent, indexer: Indexer) -> Tensor:
    """The elements of a query or key: the rotated ones, in pairs j and j + rope_dim / 2, then the others."""
    rotated = pairs_in_order(sizes.rope_dim, indexer.interleaved)
    return torch.cat([rotated, torch.arange(sizes.rope_dim, indexer.head_dim)])


def pairs_in_order(rotated: int, interleaved: bool) -> Tensor:
    """The elements of which kernels rotate j with j + rotated / 2, as they are in the file."""
    pairs = torch.arange(rotated)
    return pairs.view(-1, 2).T.flatten() if interleaved else pairs
