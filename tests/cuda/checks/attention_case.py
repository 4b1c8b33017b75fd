"""Batches for paged attention, the expected results in float64, and functions that run them."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from paged_serve.workers.geometry.layer_options import AttentionMask, AttentionOptions, alibi_slopes
from paged_serve.workers.kernels.cuda.attention import DECODE_ROWS, SPLIT_KEYS, AttentionWork, attention, plan
from paged_serve.workers.kernels.cuda.attention_kernels import AttentionShape

from ...kernel_oracles import attended
from ...workers.cache_views import reading_view
from .. import operations
from ..executors import arch_of, device_of

POISON = 1 << 30  # a block that no kernel may read
# The rounding of weights and results; scores and sums are float32. Outputs are about 1, weights at most 1.
TOLERANCE = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}


@dataclass(frozen=True)
class Options:
    """Options that change the way of computation; `window`, `cap` and `sinks` also change the result."""

    window: int = 0
    cap: float = 0.0
    sinks: bool = False
    scales: tuple[float, float] = (1.0, 1.0)  # of keys and values
    max_decode_rows: int = DECODE_ROWS
    blocks: int = 3  # of the grid
    max_slots: int = 1024


PLAIN = Options()
ALL_DECODE, ALL_PREFILL = 1 << 20, 0  # for max_decode_rows


@dataclass
class Request:
    """The tensors of a request, which are the same in every batch."""

    query: Tensor  # [new tokens, heads, head_dim]
    keys: Tensor  # [all tokens, kv_heads, head_dim] of the cache's dtype
    values: Tensor

    @classmethod
    def random(cls, heads: AttentionShape, new: int, past: int, seed: int) -> "Request":
        random = torch.Generator().manual_seed(seed)
        query = torch.randn(new, heads.num_heads, heads.head_dim, generator=random).to(heads.dtype)
        keys, values = torch.randn(2, past + new, heads.kv_heads, heads.head_dim, generator=random)
        return cls(query, keys.to(heads.cache_dtype), values.to(heads.cache_dtype))

    @classmethod
    def cancelling(cls, heads: AttentionShape, new: int, past: int, seed: int) -> "Request":
        """A request whose sums of the first two splits are large and cancel, so that the order of additions matters."""
        request = cls.random(heads, new, past, seed)
        first, second = slice(SPLIT_KEYS), slice(SPLIT_KEYS, 2 * SPLIT_KEYS)
        request.values[first] *= 2**12
        request.keys[second], request.values[second] = request.keys[first], -request.values[first]
        return request

    def chunk(self, start: int, stop: int) -> "Request":
        """The request with only the new tokens [start, stop): earlier ones are in the cache, later ones are missing."""
        end = len(self.keys) - len(self.query) + stop
        return Request(self.query[start:stop], self.keys[:end], self.values[:end])


@dataclass
class Batch:
    """Requests in one paged cache. Positions that no token attends to are NaN in it, and POISON in the tables."""

    heads: AttentionShape
    requests: list[Request]
    seed: int = 0
    window: int = 0  # 0: all
    query: Tensor = field(init=False)
    keys: Tensor = field(init=False)
    values: Tensor = field(init=False)
    tables: Tensor = field(init=False)
    row_starts: Tensor = field(init=False)
    kv_lens: Tensor = field(init=False)

    def __post_init__(self) -> None:
        size = self.heads.block_size
        counts = [-(-len(r.keys) // size) for r in self.requests]
        ids = iter(torch.randperm(sum(counts) + 2, generator=torch.Generator().manual_seed(self.seed)).tolist())
        shape = (sum(counts) + 2, self.heads.kv_heads, size, self.heads.head_dim)
        self.keys, self.values = (torch.full(shape, torch.nan).to(self.heads.cache_dtype) for _ in range(2))
        self.tables = torch.full((len(counts), max(counts) + 2), POISON, dtype=torch.int32)
        for index, (request, count) in enumerate(zip(self.requests, counts, strict=True)):
            unseen = AttentionMask(self.window, self.heads.attention_chunk).first_seen(
                len(request.keys) - len(request.query)
            )
            for block in range(unseen // size, count):
                self.tables[index, block] = at = next(ids)
                part = slice(max(unseen, block * size), min((block + 1) * size, len(request.keys)))
                slots = slice(part.start - block * size, part.stop - block * size)
                self.keys[at, :, slots] = request.keys[part].transpose(0, 1)
                self.values[at, :, slots] = request.values[part].transpose(0, 1)
        self.query = torch.cat([r.query for r in self.requests])
        starts = [0, *(len(r.query) for r in self.requests)]
        self.row_starts = torch.tensor(starts, dtype=torch.int32).cumsum(0).to(torch.int32)
        self.kv_lens = torch.tensor([len(r.keys) for r in self.requests], dtype=torch.int32)


def batch(heads: AttentionShape, lengths: list[tuple[int, int]], seed: int = 0, window: int = 0) -> Batch:
    """A batch of random requests; `lengths` are (new tokens, past tokens) of each."""
    requests = [Request.random(heads, *length, seed=seed + i) for i, length in enumerate(lengths)]
    return Batch(heads, requests, seed, window)


def sinks_of(heads: AttentionShape) -> Tensor:
    return torch.linspace(-2, 3, heads.num_heads)


def options_of(heads: AttentionShape, options: Options, device: str = "cpu", scale: float = 1.0) -> AttentionOptions:
    """The AttentionOptions of a layer with `options`; `scale` is an additional factor of scores."""
    slopes = alibi_slopes(heads.num_heads).to(device) if heads.has_alibi else None
    scale *= heads.head_dim**-0.5
    sinks = sinks_of(heads).to(device) if options.sinks else None
    kinds = heads.is_bidirectional, heads.attention_chunk
    return AttentionOptions(scale, options.window, options.cap, slopes, *kinds, sinks)


def run(launcher: Any, batch: Batch, options: Options = PLAIN, arch: str = "") -> Tensor:
    """The outputs [tokens, heads, head_dim], NaN where nothing was written; `arch`: "" means the launcher's."""
    tensors = batch.keys, batch.values, batch.tables, batch.row_starts, batch.kv_lens
    if isinstance(launcher, operations.CpuKernels):
        shown = options_of(batch.heads, options)
        return operations.attention(launcher, batch.query, reading_view(*tensors), shown)
    heads, device, arch = batch.heads, device_of(launcher), arch or arch_of(launcher)
    query, view = batch.query.to(device), reading_view(*(tensor.to(device) for tensor in tensors))
    sizes = len(batch.requests), len(batch.query), options.max_slots
    work = AttentionWork.allocate(heads, arch, options.blocks, *sizes, device, options.window)
    plan(launcher, work, view, options.max_decode_rows)
    return attention(
        launcher,
        work,
        *(query, view, 0),
        options=options_of(heads, options, device),
        code_scales=options.scales,
        prefills=any(len(r.query) * heads.group > options.max_decode_rows for r in batch.requests),
        out=torch.full_like(query, torch.nan),
    ).cpu()


def oracle(batch: Batch, options: Options = PLAIN) -> Tensor:
    return torch.cat([_oracle_of(batch.heads, request, options) for request in batch.requests])


def _oracle_of(heads: AttentionShape, request: Request, options: Options) -> Tensor:
    key_scale, value_scale = options.scales
    shown = options_of(heads, options, scale=key_scale)
    return attended(request.query, request.keys, request.values, shown) * value_scale


def assert_right(found: Tensor, batch: Batch, options: Options = PLAIN) -> None:
    tolerance = TOLERANCE[batch.heads.dtype] * options.scales[1]
    torch.testing.assert_close(found.double(), oracle(batch, options), rtol=tolerance, atol=tolerance)
