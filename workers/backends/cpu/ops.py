"""The Ops of our CPU kernels."""

from torch import Tensor

from ...kernels.cpu.buffers import Buffers
from ...kernels.cpu.elementwise import rms_norm, rotate_and_cache, silu_mul
from ...kernels.cpu.library import Pool
from ...kv.cache_view import CacheView
from ...layers.norm import RMSNorm
from ...layers.ops import HeadLayout, KernelStep


class CpuOps:
    def __init__(self, pool: Pool, buffers: Buffers, heads: HeadLayout):
        self._pool = pool
        self._buffers = buffers
        self._heads = heads

    def start_step(self, view: CacheView) -> KernelStep:
        return KernelStep(view, self._heads.rotary.table(view.longest))

    def norm(self, hidden: Tensor, norm: RMSNorm) -> Tensor:
        return rms_norm(self._pool, hidden, norm.weight, norm.eps, None, self._normed(hidden))

    def add_norm(self, hidden: Tensor, delta: Tensor, norm: RMSNorm) -> Tensor:
        return rms_norm(self._pool, hidden, norm.weight, norm.eps, delta, self._normed(hidden))

    def rotate_and_cache(
        self, step: KernelStep, layer: int, projected: Tensor, query_norm: RMSNorm | None, key_norm: RMSNorm | None
    ) -> Tensor:
        heads = self._heads
        query = self._buffers.take("query", len(projected), heads.num_heads * heads.head_dim, projected.dtype)
        return rotate_and_cache(
            self._pool,
            projected,
            step.angles,
            step.view,
            layer,
            query.view(-1, heads.num_heads, heads.head_dim),
            None if query_norm is None else query_norm.weight,
            None if key_norm is None else key_norm.weight,
            0.0 if query_norm is None else query_norm.eps,
        )

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        out = self._buffers.take("gated", len(gate_up), gate_up.shape[1] // 2, gate_up.dtype)
        return silu_mul(self._pool, gate_up, out)

    def _normed(self, hidden: Tensor) -> Tensor:
        return self._buffers.take("normed", len(hidden), hidden.shape[1], hidden.dtype)
