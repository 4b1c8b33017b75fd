"""The Ops of our CUDA kernels."""

from collections.abc import Sequence

from torch import Tensor

from ...geometry.model_options import Activation
from ...kernels.cuda.elementwise import Activation as Function
from ...kernels.cuda.elementwise import activate, cap_logits, layer_norm, rms_norm
from ...kernels.cuda.kernel import Launcher
from ...kernels.cuda.rotate import rotate_and_cache
from ...kv.cache_view import CacheView
from ...layers.norm import Norm, RMSNorm, bias_of, weight_of
from ...layers.ops import HeadLayout, KernelStep
from .products.fixed_rows import empty_rows

FUNCTIONS: dict[str, Function] = {  # kind of activation -> name in the kernel
    "silu": "silu",
    "gelu": "gelu_erf",
    "gelu_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "xielu": "xielu",
}


class CudaOps:
    def __init__(self, launcher: Launcher, heads: HeadLayout):
        self._launcher = launcher
        self._heads = heads

    def start_step(self, views: Sequence[CacheView]) -> list[KernelStep]:
        return KernelStep.of_views(views, self._heads)

    def memory(self, role: str, like: Tensor, size: int) -> Tensor:
        return like.new_empty(len(like), size)

    def norm(self, hidden: Tensor, norm: Norm, out: Tensor | None = None) -> Tensor:
        if out is None or (hidden.is_contiguous() and out.is_contiguous()):
            return self._normalised(hidden.contiguous(), norm, None, out)
        return out.copy_(self._normalised(hidden.contiguous(), norm, None))

    def add_norm(self, hidden: Tensor, delta: Tensor, norm: Norm, multiplier: float = 1.0) -> Tensor:
        return self._normalised(hidden, norm, delta if multiplier == 1.0 else delta * multiplier)

    def cap(self, logits: Tensor, cap: float) -> Tensor:
        return cap_logits(self._launcher, logits, cap)

    def add(self, hidden: Tensor, delta: Tensor, multiplier: float = 1.0) -> None:
        hidden.add_(delta if multiplier == 1.0 else delta * multiplier)

    def clip(self, x: Tensor, limit: float) -> Tensor:
        return x.clamp_(-limit, limit)

    def scale(self, x: Tensor, factors: Tensor, out: Tensor | None = None) -> Tensor:
        scaled = (x.float() * factors).to(x.dtype)
        return scaled if out is None else out.copy_(scaled)

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
        heads = self._heads
        return rotate_and_cache(
            self._launcher,
            projected,
            step.angles[layer],
            step.view,
            layer,
            projected.new_empty((len(projected), heads.queries_of(layer), heads.rotaries[layer].head_dim)),
            weight_of(query_norm),
            weight_of(key_norm),
            0.0 if query_norm is None else query_norm.eps,
            biases=(bias_of(query_norm), bias_of(key_norm)),
            is_centred=query_norm is not None and query_norm.is_centred,
            query_scales=step.query_scales[layer],
            has_keys=has_keys,
            normalises_values=heads.normalises_values,
        )

    def activate(self, x: Tensor, activation: Activation, up: Tensor | None = None) -> Tensor:
        out = empty_rows(x, activation.outputs(x.shape[1]) if up is None else x.shape[1])
        function, alphas = FUNCTIONS[activation.kind], (activation.alpha_p, activation.alpha_n)
        return activate(self._launcher, x, function, activation.is_gated, out, alphas=alphas, up=up)

    def _normalised(self, hidden: Tensor, norm: Norm, delta: Tensor | None, out: Tensor | None = None) -> Tensor:
        if out is None:
            out = empty_rows(hidden, hidden.shape[1])
        if isinstance(norm, RMSNorm):
            return rms_norm(self._launcher, hidden, norm.weight, norm.eps, delta, out)
        return layer_norm(self._launcher, hidden, norm.weight, norm.bias, norm.eps, delta, out)
