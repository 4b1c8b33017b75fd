"""Batches for latent attention, the expected results in float64, and functions that run them."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from paged_serve.workers.geometry.layer_options import AttentionOptions
from paged_serve.workers.kernels.cuda.latent.latent_attention import (
    SHAPES,
    SPLIT_TOKENS,
    LatentHeadsShape,
    LatentShape,
    LatentWork,
    latent_attention,
    plan,
)

from ...kernel_oracles import attended
from ...workers.cache_views import reading_view
from ..executors import device_of
from .attention_case import POISON, TOLERANCE

WIDE, NARROW = SHAPES[0], SHAPES[3]  # 32 rows and two tiles, 16 rows and one tile


@dataclass
class LatentRequest:
    """The tensors of a request, which are the same in every batch."""

    query: Tensor  # [new tokens, heads, head_dim]
    keys: Tensor  # [all tokens, head_dim]

    @classmethod
    def random(cls, heads: LatentHeadsShape, new: int, past: int, seed: int) -> "LatentRequest":
        random = torch.Generator().manual_seed(seed)
        query = torch.randn(new, heads.num_heads, heads.head_dim, generator=random).to(heads.dtype)
        return cls(query, torch.randn(past + new, heads.head_dim, generator=random).to(heads.dtype))

    def chunk(self, start: int, stop: int) -> "LatentRequest":
        """The request with only the new tokens [start, stop): earlier ones are in the cache, later ones are missing."""
        return LatentRequest(self.query[start:stop], self.keys[: len(self.keys) - len(self.query) + stop])


@dataclass
class LatentBatch:
    """Requests in one paged cache. Positions that no token attends to are NaN in it, and POISON in the tables."""

    heads: LatentHeadsShape
    requests: list[LatentRequest]
    seed: int = 0
    keys: Tensor = field(init=False)
    tables: Tensor = field(init=False)

    def __post_init__(self) -> None:
        size = self.heads.block_size
        counts = [-(-len(request.keys) // size) for request in self.requests]
        ids = iter(torch.randperm(sum(counts) + 2, generator=torch.Generator().manual_seed(self.seed)).tolist())
        self.keys = torch.full((sum(counts) + 2, 1, size, self.heads.head_dim), torch.nan).to(self.heads.dtype)
        self.tables = torch.full((len(counts), max(counts) + 2), POISON, dtype=torch.int32)
        for index, (request, count) in enumerate(zip(self.requests, counts, strict=True)):
            for block in range(count):
                self.tables[index, block] = at = next(ids)
                part = request.keys[block * size : (block + 1) * size]
                self.keys[at, 0, : len(part)] = part

    def run(
        self, launcher, shape: LatentShape = WIDE, split_tokens: int = SPLIT_TOKENS, max_slots: int = 512
    ) -> Tensor:
        """The outputs [tokens, heads, value_dim], NaN where nothing was written."""
        heads, device = self.heads, device_of(launcher)
        query = torch.cat([request.query for request in self.requests]).to(device)
        starts = torch.tensor([0, *(len(request.query) for request in self.requests)]).cumsum(0).to(torch.int32)
        lengths = torch.tensor([len(request.keys) for request in self.requests], dtype=torch.int32)
        keys = self.keys.to(device)
        view = reading_view(keys, keys, *(each.to(device) for each in (self.tables, starts, lengths)))
        work = LatentWork.allocate(heads, shape, 3, len(self.requests), len(query), max_slots, device)
        plan(launcher, work, view, split_tokens)
        out = torch.full((len(query), heads.num_heads, heads.value_dim), torch.nan).to(heads.dtype).to(device)
        return latent_attention(launcher, work, query, view, 0, options_of(heads), out).cpu()

    def assert_right(self, found: Tensor) -> None:
        exact = []
        for request in self.requests:
            keys = request.keys.unsqueeze(1)
            exact.append(attended(request.query, keys, keys, options_of(self.heads))[:, :, : self.heads.value_dim])
        tolerance = TOLERANCE[self.heads.dtype]
        torch.testing.assert_close(found.double(), torch.cat(exact), rtol=tolerance, atol=tolerance)


def options_of(heads: LatentHeadsShape) -> AttentionOptions:
    return AttentionOptions(1.5 * heads.head_dim**-0.5)


def batch(heads: LatentHeadsShape, lengths: list[tuple[int, int]], seed: int = 0) -> LatentBatch:
    """A batch of random requests; `lengths` are (new tokens, past tokens) of each."""
    return LatentBatch(
        heads, [LatentRequest.random(heads, *each, seed=seed + i) for i, each in enumerate(lengths)], seed
    )
