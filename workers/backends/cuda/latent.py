"""Latent attention on our CUDA kernels."""

import torch
from torch import Tensor

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.weight_forms import Weight
from ...geometry.geometry import Geometry
from ...geometry.layer_options import Latent
from ...kernels.cuda.attention_kernels import plan_kernel
from ...kernels.cuda.experts.products import INPUTS_MULTIPLE, LARGE, SMALL, head_product, product_kernel
from ...kernels.cuda.kernel import Kernel, Launcher
from ...kernels.cuda.latent import latent_attention as kernels
from ...kernels.cuda.latent.rows import cache_latents, cache_latents_kernel, rotate_heads, rotate_heads_kernel
from ...kv.cache_view import CacheView
from ...layers.attention import LatentLayer
from ...layers.ops import KernelStep
from .attention import AttentionMetadata, rounded_up
from .products.fixed_rows import empty_rows

MAX_SLOTS = 1 << 14  # sums of a row over a split, for all requests of a step: 34 MB for 512 dims
DIMS_MULTIPLE = 16  # of the latent and of the rotated part


class LatentPlans:
    """The lists of work for each number of requests and tokens, rounded up, which all layers share."""

    def __init__(self, launcher: Launcher, arch: str, multiprocessors: int):
        self._launcher = launcher
        self._arch = arch
        self._multiprocessors = multiprocessors
        self._works: dict[tuple[kernels.LatentHeadsShape, int, int], kernels.LatentWork] = {}

    def listed(self, heads: kernels.LatentHeadsShape, view: CacheView, num_tokens: int) -> kernels.LatentWork:
        """The work of a step, which the device lists now."""
        requests, tokens = rounded_up(len(view.kv_lens)), rounded_up(num_tokens)
        key = heads, requests, tokens
        if key not in self._works:
            shape = kernels.shape_for(heads, self._arch)
            assert shape is not None, (heads, self._arch)
            parts = next((made for (known, *_), made in self._works.items() if known == heads), None)
            sizes = self._multiprocessors, requests, tokens, MAX_SLOTS
            device = view.kv_lens.device
            self._works[key] = kernels.LatentWork.allocate(heads, shape, *sizes, device, parts)
        kernels.plan(self._launcher, self._works[key], view)
        return self._works[key]


class CudaLatentHeads:
    """The LatentHeads of one layer."""

    def __init__(self, launcher: Launcher, plans: LatentPlans, layer: LatentLayer):
        self._launcher = launcher
        self._plans = plans
        self._layer = layer
        self._keys, self._values = map(_floats, (layer.keys, layer.values))

    def write(self, step: KernelStep, latent: Tensor) -> None:
        layer, view = self._layer, step.view
        norm, angles = layer.norm, step.angles[layer.layer]
        cache_latents(self._launcher, latent, norm.weight, norm.eps, angles, view, layer.layer, layer.sizes)

    def attend(self, plan: AttentionMetadata, step: KernelStep, query: Tensor) -> Tensor:
        layer, sizes, view = self._layer, self._layer.sizes, step.view
        tokens, heads = len(query), layer.num_heads
        if (scales := step.query_scales[layer.layer]) is not None:
            query = (query.float() * scales[view.positions].unsqueeze(1)).to(query.dtype)
        by_head = query.view(tokens, heads, sizes.query_dim)
        absorbed = query.new_empty((tokens, heads, sizes.cached_dim))
        head_product(self._launcher, by_head[:, :, : sizes.nope_dim], self._keys, absorbed[:, :, : sizes.kv_rank])
        rotate_heads(self._launcher, by_head, step.angles[layer.layer], view.positions, sizes, absorbed)
        mask = layer.options.mask
        if mask not in plan.latent:
            block_size = view.cache.keys[layer.layer].shape[2]
            shape = kernels.LatentHeadsShape.of(query.dtype, heads, sizes, block_size)
            plan.latent[mask] = self._plans.listed(shape, view, tokens)
        mixed = query.new_empty((tokens, heads, sizes.kv_rank))
        arguments = self._launcher, plan.latent[mask], absorbed, view, layer.layer, layer.options, mixed
        kernels.latent_attention(*arguments, prefills=view.num_decode_rows < len(view.kv_lens))
        out = empty_rows(query, heads * sizes.value_dim)
        head_product(self._launcher, mixed, self._values, out.view(tokens, heads, sizes.value_dim))
        return out


def latent_kernels(geometry: Geometry, sizes: Latent, heads: int, block_size: int, arch: str) -> list[Kernel]:
    """The kernels that latent attention launches for `heads` heads of a rank."""
    dtype = geometry.dtype
    shape = kernels.LatentHeadsShape.of(dtype, heads, sizes, block_size)
    tiles = kernels.shape_for(shape, arch)
    assert tiles is not None, (shape, arch)
    return [
        cache_latents_kernel(dtype, sizes),
        rotate_heads_kernel(dtype, heads, sizes),
        *(product_kernel(dtype, dtype, each) for each in (SMALL, LARGE)),
        plan_kernel(),
        kernels.latent_kernel(shape, tiles),
        kernels.merge_kernel(shape),
    ]


def check_latent_sizes(dtype: torch.dtype, sizes: Latent, arch: str) -> None:
    """Raises ConfigError naming the size that the kernels do not support."""
    multiples = {
        "kv_lora_rank": (sizes.kv_rank, DIMS_MULTIPLE),
        "qk_rope_head_dim": (sizes.rope_dim, DIMS_MULTIPLE),
        "qk_nope_head_dim": (sizes.nope_dim, INPUTS_MULTIPLE),
        "v_head_dim": (sizes.value_dim, 2),
    }
    for name, (size, multiple) in multiples.items():
        if size % multiple:
            raise ConfigError(
                f"config.json: {name}={size} must be a multiple of {multiple} for the CUDA kernels of latent "
                "attention; use --device cpu"
            )
    if kernels.shape_for(kernels.LatentHeadsShape.of(dtype, 1, sizes, 16), arch) is None:
        raise ConfigError(
            f"config.json: kv_lora_rank={sizes.kv_rank} with qk_rope_head_dim={sizes.rope_dim} needs more shared "
            f"memory than {arch} has; use --device cpu"
        )


def _floats(weight: Weight) -> Tensor:
    """A weight of the model's dtype, at an address that 16-byte copies can read."""
    assert isinstance(weight, Tensor), type(weight)
    return weight if weight.data_ptr() % 16 == 0 else weight.clone()
