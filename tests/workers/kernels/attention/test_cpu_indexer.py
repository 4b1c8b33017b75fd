"""Sparse attention: keys are chosen by their definition, and attention has the bits of that over adjacent keys."""

import math

import numpy as np
import pytest
import torch

from paged_serve.workers.geometry.layer_options import AttentionOptions, Indexer, Latent
from paged_serve.workers.kernels.cpu.buffers import Buffers
from paged_serve.workers.kernels.cpu.latent.indexer import SelectedKeys, attend_selected, cache_index_keys, select_keys
from paged_serve.workers.kernels.cpu.latent.latent_attention import latent_attention, rotate_parts
from paged_serve.workers.kv.cache_view import CacheView

from ...cache_views import reading_view, writing_view

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
KV_RANK, ROPE = 24, 12  # 36 elements, so that the index key begins at 48
NO_BLOCK = 2**30


def sizes_of(heads: int, index_dim: int, top_k: int) -> Latent:
    return Latent(8, KV_RANK, 9, ROPE, 8, Indexer(heads, index_dim, top_k, interleaved=False))


class Step:
    """Requests of (tokens before, tokens of the step), in blocks of a shuffled cache whose other slots are NaN."""

    def __init__(self, requests, sizes: Latent, dtype: torch.dtype, block_size: int = 16, seed: int = 0):
        generator = torch.Generator().manual_seed(seed)
        self.sizes, self.requests = sizes, requests
        lens = [sum(request) for request in requests]
        blocks = [-(-length // block_size) for length in lens]
        order = torch.randperm(sum(blocks) + 2, generator=generator).int()
        tables = torch.full((len(lens), max(blocks)), NO_BLOCK, dtype=torch.int32)
        self.rows = torch.full((sum(blocks) + 2, 1, block_size, sizes.row_dim), torch.nan, dtype=dtype)
        self.positions = []  # the rows of each request, in order
        at = 0
        for request, (length, count) in enumerate(zip(lens, blocks, strict=True)):
            tables[request, :count] = order[at : at + count]
            at += count
            here = torch.arange(length)
            slots = tables[request, here // block_size].long() * block_size + here % block_size
            values = torch.randn(length, sizes.row_dim, generator=torch.Generator().manual_seed(100 + request))
            values[:, sizes.cached_dim : sizes.index_start] = 0
            values[:, sizes.index_start + sizes.indexer.head_dim :] = 0
            self.rows.view(-1, sizes.row_dim)[slots] = values.to(dtype)
            self.positions.append(slots)
        starts = torch.tensor([0, *np.cumsum([new for _, new in requests])]).int()
        self.view: CacheView = reading_view(self.rows, self.rows, tables, starts, torch.tensor(lens).int())
        self.tokens, heads, dim = int(starts[-1]), sizes.indexer.num_heads, sizes.indexer.head_dim
        self.query = torch.randn(self.tokens, heads, dim, generator=generator).to(dtype)
        self.weights = torch.randn(self.tokens, heads, generator=generator)

    def seen(self):
        """For each token its request and the slots of its positions."""
        for (before, new), slots in zip(self.requests, self.positions, strict=True):
            for token in range(new):
                yield slots[: before + token + 1]

    def select(self, pool) -> SelectedKeys:
        out = SelectedKeys.take(Buffers(), self.tokens, self.sizes.indexer.top_k)
        for each in (out.tables, out.row_starts, out.kv_lens):
            each.fill_(-7)
        select_keys(pool, self.query, self.weights, self.view, 0, self.sizes, out)
        return out

    def chosen(self, pool) -> list[list[int]]:
        """The slots of each token."""
        out = self.select(pool)
        starts, lens = out.row_starts.tolist(), out.kv_lens.tolist()
        assert starts[0] == 0
        assert starts[-1] == self.tokens
        found = []
        for group, length in enumerate(lens):
            count = starts[group + 1] - starts[group]
            found += [out.tables[group, : length - count + 1 + i].tolist() for i in range(count)]
        return found


def scores_of(query: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor) -> np.ndarray:
    """The definition in float64."""
    heads, dim = query.shape
    products = np.maximum(query.double().numpy() @ keys.double().numpy().T / math.sqrt(dim), 0)
    return (weights.double().numpy()[:, None] / math.sqrt(heads) * products).sum(0)


REQUESTS = [(0, 1), (0, 9), (7, 1), (8, 1), (5, 20), (60, 3), (64, 1), (511, 2), (1100, 1), (130, 70)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "index_dim", "top_k"), [(4, 16, 8), (5, 20, 33), (64, 128, 100), (3, 12, 1)])
def test_the_highest_scores_are_chosen_in_order_of_positions(cpu_pools, dtype, heads, index_dim, top_k):
    step = Step(REQUESTS if heads < 64 else REQUESTS[:7], sizes_of(heads, index_dim, top_k), dtype)
    one, three = (step.chosen(pool) for pool in cpu_pools)
    assert one == three
    start = step.sizes.index_start
    keys = step.rows.view(-1, step.sizes.row_dim)[:, start : start + index_dim]
    for token, (slots, found) in enumerate(zip(step.seen(), one, strict=True)):
        if len(slots) <= top_k:
            assert found == slots.tolist()
            continue
        scores = scores_of(step.query[token], step.weights[token], keys[slots])
        at = {slot: position for position, slot in enumerate(slots.tolist())}
        positions = [at[slot] for slot in found]
        assert positions == sorted(set(positions))
        assert len(positions) == top_k
        others = np.delete(scores, positions)
        assert scores[positions].min() >= others.max() - 1e-5 * np.abs(scores).max()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_choice_is_the_same_in_any_chunk_block_size_and_company(cpu_pools, dtype):
    sizes = sizes_of(5, 20, 33)
    for pool in cpu_pools:
        whole = Step([(0, 300)], sizes, dtype)
        expected = [[whole.positions[0].tolist().index(slot) for slot in token] for token in whole.chosen(pool)]
        for block_size, (before, new) in zip(
            (16, 32, 64, 16), ((299, 1), (40, 260), (250, 50), (20, 100)), strict=True
        ):
            step = Step([(before, new), (90, 3)], sizes, dtype, block_size, seed=block_size)
            step.query[:new], step.weights[:new] = (
                each[before : before + new] for each in (whole.query, whole.weights)
            )
            slots = step.positions[0].tolist()
            found = [[slots.index(slot) for slot in token] for token in step.chosen(pool)[:new]]
            assert found == expected[before : before + new]


EXACT = torch.tensor([3.0, -1.0, 2.0, 3.0, 0.0, -0.0, 2.0, 3.0, 1.0, 2.0, torch.nan, -2.0, torch.inf, 5.0, 3.0, 2.0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("top_k", range(1, 16))
@pytest.mark.parametrize("sign", [1, -1])
def test_of_equal_scores_the_earlier_is_chosen(cpu_pools, dtype, top_k, sign):
    """The query and the weight are powers of two, so scores are exact. max(NaN, 0) is 0, and -0 is 0 as well."""
    step = Step([(15, 1)], sizes_of(1, 12, top_k), dtype)
    start = step.sizes.index_start
    step.rows.view(-1, step.sizes.row_dim)[step.positions[0], start : start + 12] = 0
    step.rows.view(-1, step.sizes.row_dim)[step.positions[0], start] = EXACT.to(dtype)
    step.query.zero_()
    step.query[0, 0, 0], step.weights[0, 0] = 1, sign
    scores = sign * EXACT.nan_to_num(0, posinf=torch.inf).clamp(min=0)
    order = sorted(range(16), key=lambda position: (-scores[position].item(), position))
    expected = step.positions[0][sorted(order[:top_k])].tolist()
    for pool in cpu_pools:
        assert step.chosen(pool) == [expected]


def test_scores_that_underflow_from_below_are_equal_to_zero(cpu_pools):
    step = Step([(15, 1)], sizes_of(1, 12, 4), torch.float32)
    start = step.sizes.index_start
    step.rows.view(-1, step.sizes.row_dim)[step.positions[0], start : start + 12] = 0
    step.rows.view(-1, step.sizes.row_dim)[step.positions[0][[0, 1, 2, 5]], start] = 2.0**-100
    step.query.fill_(1)
    step.weights.fill_(-(2.0**-100))
    for pool in cpu_pools:
        assert step.chosen(pool) == [step.positions[0][:4].tolist()]


def test_scores_that_are_not_numbers_are_the_least(cpu_pools):
    """Infinite products of two heads, with weights of both signs, add to NaN."""
    step = Step([(15, 1)], sizes_of(2, 12, 4), torch.float32)
    start = step.sizes.index_start
    step.rows.view(-1, step.sizes.row_dim)[step.positions[0], start : start + 12] = 1
    for position in (0, 3, 5):
        step.rows.view(-1, step.sizes.row_dim)[step.positions[0][position], start] = torch.inf
    step.query.fill_(1)
    step.weights[0] = torch.tensor([1.0, -1.0])
    for pool in cpu_pools:
        assert step.chosen(pool) == [step.positions[0][[1, 2, 4, 6]].tolist()]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads", [1, 5, 40])
def test_attention_over_chosen_keys_has_the_bits_of_attention_over_adjacent_ones(pools_of_each_order, dtype, heads):
    """Of all positions: as the dense kernel. Of some: as if the request had no others."""
    sizes = sizes_of(4, 16, 150)
    step = Step([(0, 70), (149, 1), (60, 91), (400, 3), (1500, 1)], sizes, dtype)
    query = torch.randn(step.tokens, heads, sizes.cached_dim, generator=torch.Generator().manual_seed(1)).to(dtype)
    options, shape = AttentionOptions(0.2), (step.tokens, heads, KV_RANK)
    expected = []
    for slots, own, chosen in zip(step.seen(), query.unsqueeze(1), step.chosen(pools_of_each_order[0]), strict=True):
        kept = slots if len(slots) <= 150 else torch.tensor(chosen)
        blocks = -(-len(kept) // 16)
        rows = torch.full((blocks, 1, 16, 48), torch.nan, dtype=dtype)
        rows.view(-1, 48)[: len(kept)] = step.rows.view(-1, sizes.row_dim)[kept, :48]
        table, starts = torch.arange(blocks).int().unsqueeze(0), torch.tensor([0, 1]).int()
        alone = reading_view(rows, rows, table, starts, torch.tensor([len(kept)]).int())
        out = torch.empty(1, heads, KV_RANK, dtype=dtype)
        expected.append(latent_attention(pools_of_each_order[0], own, alone, 0, options, out).clone())
    for pool in pools_of_each_order:
        out = torch.full(shape, torch.nan, dtype=dtype)
        attend_selected(pool, query, step.select(pool), step.view, 0, options, out)
        assert torch.equal(out, torch.cat(expected))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("index_dim", [12, 20, 32])
def test_index_keys_are_rotated_and_written_beside_the_latents(cpu_pools, dtype, index_dim):
    sizes, tokens = sizes_of(1, index_dim, 4), 5
    keys = torch.randn(tokens, index_dim + 3).to(dtype)[:, :index_dim]
    angles, positions, slots = torch.rand(50, ROPE), torch.arange(20, 20 + tokens), torch.randperm(48)[:tokens]
    for pool in cpu_pools:
        rows = torch.full((3, 1, 16, sizes.row_dim), torch.nan, dtype=dtype)
        view = writing_view(positions, slots, rows, rows)
        cache_index_keys(pool, keys, angles, view, 0, sizes, index_dim)
        found = rows.view(-1, sizes.row_dim)
        turned = torch.empty(tokens, 1, ROPE, dtype=dtype)
        rotate_parts(pool, keys[:, None, :ROPE], angles, positions, turned)
        expected = torch.cat([turned[:, 0], keys[:, ROPE:]], dim=1)
        start, end = sizes.index_start, sizes.index_start + index_dim
        assert torch.equal(found[slots, start:end], expected)
        assert (found[slots, end:] == 0).all()
        found[slots, start:] = torch.nan
        assert found.isnan().all()
