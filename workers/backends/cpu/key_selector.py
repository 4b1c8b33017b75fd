"""The choice of keys in sparse attention by our CPU kernels."""

from torch import Tensor

from ...geometry.layer_options import Indexer, Latent
from ...kernels.cpu.buffers import Buffers
from ...kernels.cpu.latent.indexer import SelectedKeys, cache_index_keys, select_keys
from ...kernels.cpu.latent.latent_attention import rotate_parts
from ...kernels.cpu.library import Pool
from ...kv.cache_view import CacheView
from ...layers.ops import KernelStep


class CpuKeySelector:
    """The KeySelector of our CPU kernels. All layers' choices are in the same memory, one after the other."""

    def __init__(self, pool: Pool, buffers: Buffers, layer: int, sizes: Latent, indexer: Indexer):
        self._pool = pool
        self._buffers = buffers
        self._layer = layer
        self._sizes = sizes
        self._indexer = indexer

    def write(self, step: KernelStep, keys: Tensor) -> None:
        angles = step.angles[self._layer]
        cache_index_keys(self._pool, keys, angles, step.view, self._layer, self._sizes, self._indexer.head_dim)

    def select(self, view: CacheView, step: KernelStep, query: Tensor, weights: Tensor) -> None:
        by_head = query.view(len(query), self._indexer.num_heads, self._indexer.head_dim)
        first = by_head[:, :, : self._sizes.rope_dim]
        rotate_parts(self._pool, first, step.angles[self._layer], view.positions, first)
        selected = self.selected(len(query))
        select_keys(self._pool, by_head, weights, view, self._layer, self._sizes, selected)

    def selected(self, tokens: int) -> SelectedKeys:
        return SelectedKeys.take(self._buffers, tokens, self._indexer.top_k)
