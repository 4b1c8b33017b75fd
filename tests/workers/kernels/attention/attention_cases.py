"""Rows, keys and values for the CPU kernels of attention, with the exact results and the allowed error."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from paged_serve.workers.geometry.layer_options import AttentionOptions, alibi_slopes
from paged_serve.workers.kernels.cpu import library as cpu
from paged_serve.workers.kernels.cpu.attention import attention, cached_head_dim

from ....kernel_oracles import attended, bias_of, sinks_of
from ...cache_views import reading_view

FLOATS = [(dtype, dtype) for dtype in (torch.bfloat16, torch.float16, torch.float32)]  # (queries, cache)
CODED = [(torch.bfloat16, torch.int8), (torch.float16, torch.int8)]
WEIGHT_ERRORS = {torch.bfloat16: 2.0**-8, torch.float16: 3e-6, torch.float32: 2.0**-24}  # relative, of weights
NO_BLOCK = 2**30  # the entries of a table past the row's last block: reading such a block would crash


@dataclass
class Case:
    """Rows of (computed tokens, new tokens) in a cache whose unwritten slots, or their scales, hold NaN."""

    rows: list[tuple[int, int]]
    query: Tensor  # [tokens, heads, head_dim]
    kv: list[Tensor]  # for each row, [2, its length, kv_heads, head_dim]
    cache: Tensor  # [2, num_blocks, kv_heads, block_size, cached_head_dim(head_dim)]
    tables: Tensor  # [rows, max_blocks]
    options: AttentionOptions
    scales: tuple[Tensor, Tensor] | None  # for an int8 cache, [num_blocks, kv_heads, block_size] each

    @property
    def starts(self) -> list[int]:
        return torch.tensor([0, *(new for _, new in self.rows)]).cumsum(0).tolist()

    def run(self, pool: cpu.Pool) -> Tensor:
        return self.run_chunk(pool, list(range(len(self.rows))), [(0, new) for _, new in self.rows])

    def run_chunk(self, pool: cpu.Pool, rows: list[int], spans: list[tuple[int, int]]) -> Tensor:
        """Attention of only the tokens span[0]:span[1] of the new tokens of each of `rows`."""
        starts = self.starts
        query = torch.cat(
            [self.query[starts[row] + a : starts[row] + b] for row, (a, b) in zip(rows, spans, strict=True)]
        )
        counts = [0, *(b - a for a, b in spans)]
        view = reading_view(
            *self.cache,
            self.tables[rows],
            torch.tensor(counts).cumsum(0).int(),
            torch.tensor([self.rows[row][0] + b for row, (_, b) in zip(rows, spans, strict=True)]).int(),
            self.scales,
        )
        return attention(pool, query, view, 0, self.options)

    def exact(self) -> tuple[Tensor, Tensor]:
        """The result by definition in float64, and the same with absolute values: the magnitude of the summands."""
        both = []
        for (_, new), (keys, values), start in zip(self.rows, self.kv, self.starts, strict=False):
            query = self.query[start : start + new]
            both.append(attended(query, keys, torch.cat([values, values.abs()], -1), self.options))
        results, sizes = torch.cat(both).chunk(2, -1)
        return results, sizes


def make_case(
    rows, dtypes, group=2, kv_heads=2, head_dim=32, block_size=16, seed=0, alibi=False, sinks=False, reach=0, **options
) -> Case:
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-(old + new) // block_size) for old, new in rows]
    computed, held = dtypes
    cache = torch.full((2, sum(counts) + 3, kv_heads, block_size, cached_head_dim(head_dim)), torch.nan, dtype=computed)
    ids = torch.randperm(sum(counts) + 3, generator=torch.Generator().manual_seed(seed)).int()
    tables = torch.full((len(rows), max(counts)), NO_BLOCK, dtype=torch.int32)
    kv = []
    for row, ((old, new), count) in enumerate(zip(rows, counts, strict=True)):
        tables[row, :count], ids = ids[:count], ids[count:]
        kv.append(torch.randn(2, old + new, kv_heads, head_dim, generator=generator).to(computed))
        slots = torch.arange(old + new)
        filled = functional.pad(kv[row], (0, cached_head_dim(head_dim) - head_dim))
        cache[:, tables[row, slots // block_size].long(), :, slots % block_size] = filled.transpose(0, 1)
    query = torch.randn(sum(new for _, new in rows), group * kv_heads, head_dim, generator=generator).to(computed)
    scales = None
    if held == torch.int8:
        cache, both = coded(cache)
        scales = both[0], both[1]
        kv = [codes.double() * factors.unsqueeze(-1).double() for codes, factors in map(coded, kv)]
    heads = group * kv_heads
    of_heads = {"slopes": alibi_slopes(heads) if alibi else None, "sinks": sinks_of(heads) if sinks else None}
    of_heads["bias"] = bias_of(heads, reach) if reach else None
    return Case(rows, query, kv, cache, tables, AttentionOptions(head_dim**-0.5, **of_heads, **options), scales)


def coded(x: Tensor) -> tuple[Tensor, Tensor]:
    """Codes [..., head_dim] int8 and their scales [...]; codes of NaN are arbitrary."""
    scales = x.float().abs().amax(-1) / 127
    return (x.float() / scales.unsqueeze(-1)).nan_to_num(77).round().to(torch.int8), scales


def assert_near(found: Tensor, case: Case) -> None:
    """Assert that the error is within that of rounded weights, float32 sums and the final rounding."""
    exact, size = case.exact()
    stored = torch.finfo(found.dtype)
    longest = max(old + new for old, new in case.rows)
    score = 2.0**-24 * (case.query.shape[2] + 8) * 8  # the largest error of a score in these tests
    lost = size * (WEIGHT_ERRORS[found.dtype] + 2 * score + 2.0**-24 * longest**0.5 * 4)
    allowed = lost + exact.abs().clamp(min=stored.smallest_normal) * stored.eps / 2 * 1.01
    assert ((found.double() - exact).abs() <= allowed).all()
