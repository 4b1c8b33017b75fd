"""Latent attention of our CPU kernels."""

from torch import Tensor

from ...checkpoint.packed_weight import PackedWeight
from ...kernels.cpu.buffers import Buffers
from ...kernels.cpu.latent.indexer import attend_selected
from ...kernels.cpu.latent.latent_attention import cache_latents, head_gemm, latent_attention, rotate_heads
from ...kernels.cpu.library import Pool
from ...kernels.cpu.recurrent.factors import scale_by_position
from ...kv.cache_view import CacheView
from ...layers.attention import LatentLayer
from ...layers.ops import KernelStep
from .key_selector import CpuKeySelector


class CpuLatentHeads:
    """The LatentHeads of our CPU kernels, whose weights `keys` and `values` are packed in the model's dtype."""

    def __init__(self, pool: Pool, buffers: Buffers, layer: LatentLayer):
        assert isinstance(layer.keys, PackedWeight)
        assert isinstance(layer.values, PackedWeight)
        self._pool = pool
        self._buffers = buffers
        self._layer = layer
        self._keys, self._values = layer.keys, layer.values

    def write(self, step: KernelStep, latent: Tensor) -> None:
        layer, norm = self._layer, self._layer.norm
        angles = step.angles[layer.layer]
        cache_latents(self._pool, latent, norm.weight, norm.eps, angles, step.view, layer.layer, layer.sizes)

    def attend(self, plan: CacheView, step: KernelStep, query: Tensor) -> Tensor:
        layer, sizes, angles = self._layer, self._layer.sizes, step.angles[self._layer.layer]
        if (scales := step.query_scales[layer.layer]) is not None:
            scale_by_position(self._pool, query, scales, step.view.positions)
        by_head = query.view(len(query), layer.num_heads, sizes.query_dim)
        absorbed = self._take("latent query", query, sizes.cached_dim)
        rotate_heads(self._pool, by_head, angles, step.view.positions, sizes, absorbed)
        head_gemm(self._pool, by_head[:, :, : sizes.nope_dim], self._keys, absorbed[:, :, : sizes.kv_rank])
        mixed = self._take("mixed latents", query, sizes.kv_rank)
        if layer.selector is None:
            latent_attention(self._pool, absorbed, plan, layer.layer, layer.options, mixed)
        else:
            assert isinstance(layer.selector, CpuKeySelector)
            selected = layer.selector.selected(len(query))
            attend_selected(self._pool, absorbed, selected, step.view, layer.layer, layer.options, mixed)
        return head_gemm(self._pool, mixed, self._values, self._take("mixed", query, sizes.value_dim)).flatten(1)

    def _take(self, role: str, query: Tensor, size: int) -> Tensor:
        """A buffer [tokens, heads, size]."""
        heads = self._layer.num_heads
        return self._buffers.take(role, len(query), heads * size, query.dtype).view(len(query), heads, size)
