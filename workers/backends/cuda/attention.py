"""The AttentionBackend of our CUDA kernels."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ...geometry.layer_options import AttentionMask, AttentionOptions
from ...kernels.cuda import attention as kernels
from ...kernels.cuda.attention_kernels import AttentionShape
from ...kernels.cuda.kernel import Launcher
from ...kernels.cuda.latent.latent_attention import LatentWork
from ...kv.cache_view import CacheView
from .products.fixed_rows import empty_rows

Kind = tuple[AttentionMask, int, int, int]  # of layers: their mask, query heads, KV heads and head_dim
MAX_SLOTS = 4096  # sums of a row over a split, for all requests of a step; a request without a free slot is not split


@dataclass(frozen=True, slots=True, eq=False)
class AttentionMetadata:
    """The work of one step by kind of layer; the device lists it when a layer first needs it."""

    view: CacheView
    by_kind: dict[Kind, kernels.AttentionWork]  # shared by KV groups, as it does not use block tables
    latent: dict[AttentionMask, LatentWork] = field(default_factory=dict)  # of latent attention


class CudaPagedAttention:
    """Attention over caches of bfloat16, float16 or e4m3, for the head dimensions of the kernels.

    There are work lists for each number of requests and tokens, rounded up, so that each captured graph has its own.
    """

    head_multiple = 1
    coded_cache: torch.dtype | None = torch.float8_e4m3fn

    def __init__(self, launcher: Launcher, arch: str, multiprocessors: int):
        self._launcher = launcher
        self._arch = arch
        self._multiprocessors = multiprocessors
        self._plans: dict[tuple[AttentionShape, int, int, int], kernels.AttentionWork] = {}
        self._listed_for: dict[kernels.AttentionWork, object] = {}  # the `by_kind` that listed last

    def plan(self, views: Sequence[CacheView], num_heads: int) -> list[AttentionMetadata]:
        by_kind: dict[Kind, kernels.AttentionWork] = {}
        return [AttentionMetadata(view, by_kind) for view in views]

    def attend(self, plan: AttentionMetadata, layer: int, query: Tensor, options: AttentionOptions) -> Tensor:
        view, keys = plan.view, plan.view.cache.keys[layer]
        tokens, heads, head_dim = query.shape
        kind = options.mask, heads, keys.shape[1], head_dim
        # The parts of an encoder's step may use the same memory in turn.
        if kind not in plan.by_kind or self._listed_for[plan.by_kind[kind]] is not plan.by_kind:
            plan.by_kind[kind] = self._listed(view, query, keys, options)
            self._listed_for[plan.by_kind[kind]] = plan.by_kind
        return kernels.attention(
            self._launcher,
            plan.by_kind[kind],
            query,
            view,
            layer,
            options,
            prefills=view.num_decode_rows < len(view.kv_lens),
            out=empty_rows(query.flatten(1), heads * head_dim).view(tokens, heads, head_dim),
        )

    def _listed(self, view: CacheView, query: Tensor, keys: Tensor, options: AttentionOptions) -> kernels.AttentionWork:
        _, num_heads, head_dim = query.shape
        _, kv_heads, block_size, _ = keys.shape
        heads = AttentionShape(query.dtype, keys.dtype, num_heads, kv_heads, head_dim, block_size)
        is_bidirectional, chunk = options.is_bidirectional, options.attention_chunk
        heads = replace(heads, has_alibi=options.slopes is not None, is_bidirectional=is_bidirectional)
        heads = replace(heads, attention_chunk=chunk)
        requests, tokens = rounded_up(len(view.kv_lens)), rounded_up(len(query))
        key = heads, requests, tokens, options.window
        if key not in self._plans:
            parts = next((made for (known, *_), made in self._plans.items() if known == heads), None)
            blocks = max(1, 2 * self._multiprocessors // kv_heads)
            self._plans[key] = kernels.AttentionWork.allocate(
                heads, self._arch, blocks, requests, tokens, MAX_SLOTS, query.device, options.window, parts
            )
        listed = self._plans[key]
        # The rows of one token at least: a decode step computes only what is split.
        kernels.plan(self._launcher, listed, view, max(kernels.DECODE_ROWS, heads.group))
        return listed


def rounded_up(count: int) -> int:
    return 1 << (count - 1).bit_length()
