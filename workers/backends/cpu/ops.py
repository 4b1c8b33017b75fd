"""The Ops of our CPU kernels."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ...geometry.model_options import Activation
from ...kernels.cpu.buffers import Buffers
from ...kernels.cpu.elementwise import activate, cap_logits, clip, normalise, rotate_and_cache
from ...kernels.cpu.library import Pool
from ...kernels.cpu.recurrent.factors import scale_columns
from ...kv.cache_view import CacheView
from ...layers.norm import Norm, RMSNorm, bias_of, weight_of
from ...layers.ops import HeadLayout, KernelStep


class CpuOps:
    def __init__(self, pool: Pool, buffers: Buffers, heads: HeadLayout):
        self._pool = pool
        self._buffers = buffers
        self._heads = heads
        self._unread: dict[int, RMSNorm] = {}  # by size

    def start_step(self, views: Sequence[CacheView]) -> list[KernelStep]:
        return KernelStep.of_views(views, self._heads)

    def memory(self, role: str, like: Tensor, size: int) -> Tensor:
        return self._buffers.take(role, len(like), size, like.dtype)

    def norm(self, hidden: Tensor, norm: Norm, out: Tensor | None = None) -> Tensor:
        return self._normalise(hidden, None, 1.0, norm, out)

    def add_norm(self, hidden: Tensor, delta: Tensor, norm: Norm, multiplier: float = 1.0) -> Tensor:
        return self._normalise(hidden, delta, multiplier, norm)

    def add(self, hidden: Tensor, delta: Tensor, multiplier: float = 1.0) -> None:
        """Run the norm kernel and ignore its normalised result, which costs little compared with a product."""
        if (size := hidden.shape[1]) not in self._unread:
            self._unread[size] = RMSNorm(torch.ones(size), 1.0)
        out = self._buffers.take("unread", len(hidden), size, hidden.dtype)
        self._normalise(hidden, delta, multiplier, self._unread[size], out)

    def cap(self, logits: Tensor, cap: float) -> Tensor:
        return cap_logits(self._pool, logits, cap)

    def clip(self, x: Tensor, limit: float) -> Tensor:
        return clip(self._pool, x, limit)

    def scale(self, x: Tensor, factors: Tensor, out: Tensor | None = None) -> Tensor:
        if out is None:
            out = self._buffers.take("scaled", len(x), x.shape[1], x.dtype)
        return scale_columns(self._pool, x, factors, out)

    def rotate_and_cache(
        self, step: KernelStep, layer: int, projected: Tensor, query_norm: Norm | None, key_norm: Norm | None
    ) -> Tensor:
        return self._rotated(step, layer, projected, query_norm, key_norm, has_keys=True)

    def rotate_queries(self, step: KernelStep, layer: int, projected: Tensor, query_norm: Norm | None) -> Tensor:
        return self._rotated(step, layer, projected, query_norm, None, has_keys=False)

    def _rotated(
        self,
        step: KernelStep,
        layer: int,
        projected: Tensor,
        query_norm: Norm | None,
        key_norm: Norm | None,
        *,
        has_keys: bool,
    ) -> Tensor:
        num_heads, head_dim = self._heads.queries_of(layer), self._heads.rotaries[layer].head_dim
        query = self._buffers.take("query", len(projected), num_heads * head_dim, projected.dtype)
        return rotate_and_cache(
            self._pool,
            projected,
            step.angles[layer],
            step.view,
            layer,
            query.view(-1, num_heads, head_dim),
            weight_of(query_norm),
            weight_of(key_norm),
            0.0 if query_norm is None else query_norm.eps,
            biases=(bias_of(query_norm), bias_of(key_norm)),
            is_centred=query_norm is not None and query_norm.is_centred,
            query_scales=step.query_scales[layer],
            has_keys=has_keys,
            normalises_values=self._heads.normalises_values,
        )

    def activate(self, x: Tensor, activation: Activation, up: Tensor | None = None) -> Tensor:
        size = activation.outputs(x.shape[1]) if up is None else x.shape[1]
        out = self._buffers.take("activated", len(x), size, x.dtype)
        return activate(self._pool, x, activation, out, up)

    def _normalise(
        self, hidden: Tensor, delta: Tensor | None, multiplier: float, norm: Norm, out: Tensor | None = None
    ) -> Tensor:
        if out is None:
            out = self._buffers.take("normed", len(hidden), hidden.shape[1], hidden.dtype)
        return normalise(
            self._pool,
            hidden,
            norm.weight,
            norm.bias,
            norm.eps,
            is_centred=norm.is_centred,
            delta=delta,
            multiplier=multiplier,
            out=out,
        )
