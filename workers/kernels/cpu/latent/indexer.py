"""Sparse attention over the paged cache: an indexer chooses a token's keys. Bits depend only on its request."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ....geometry.layer_options import AttentionMask, AttentionOptions, Latent
from ....kv.cache_view import CacheView
from ..attention import MAX_HEAD_DIM, attention_numbers, cached_head_dim
from ..buffers import Buffers
from ..library import Pool
from ..parameters import DTYPE_CODES, packer
from ..structs.latent import CacheIndexKeysParams, LatentAttentionParams, SelectKeysParams
from .latent_attention import NAMES

CACHE, SELECT, ATTEND = map(packer, (CacheIndexKeysParams, SelectKeysParams, LatentAttentionParams))
MOST_SLOTS = 1 << 31


@dataclass(frozen=True, slots=True, eq=False)
class SelectedKeys:
    """The keys that each token of a step attends to, as requests of attention whose blocks have one token.

    Consecutive tokens of a request that attend to all positions are one of them, each other token is one; the rest are
    empty.
    """

    tables: Tensor  # [tokens, top_k] i32, slots in order of positions; entries past a request's last are not read
    row_starts: Tensor  # [tokens + 1] i32
    kv_lens: Tensor  # [tokens] i32

    @classmethod
    def take(cls, buffers: Buffers, tokens: int, top_k: int) -> "SelectedKeys":
        """Memory in which the step's last choice stays until the next."""
        tables = buffers.take("selected slots", tokens, top_k, torch.int32)
        starts = buffers.take("selected starts", tokens + 1, 1, torch.int32)
        lens = buffers.take("selected lengths", tokens, 1, torch.int32)
        return cls(tables, starts.view(-1), lens.view(-1))


def cache_index_keys(
    pool: Pool, keys: Tensor, angles: Tensor, view: CacheView, layer: int, sizes: Latent, index_dim: int
) -> None:
    """Write `keys` [tokens, index_dim], whose rows may be strided, to the tokens' rows of `layer`.

    The first rope_dim elements are rotated by `angles` [positions, rope_dim] float32, a Rotary's table.
    """
    rows, positions, slots = view.cache.keys[layer], view.positions, view.slots
    tokens = len(keys)
    _check_rows(rows, sizes, index_dim, keys.dtype)
    assert keys.shape == (tokens, index_dim)
    assert keys.stride(1) == 1, keys.stride()
    assert positions.shape == slots.shape == (tokens,)
    assert positions.dtype == slots.dtype == torch.int64
    assert angles.dtype == torch.float32, angles.dtype
    assert angles.shape[1] == sizes.rope_dim <= index_dim, angles.shape
    assert angles.is_contiguous()
    pointers = _index_keys(rows, sizes), *(each.data_ptr() for each in (keys, angles, positions, slots))
    numbers = keys.stride(0), rows.shape[3], tokens, index_dim, sizes.rope_dim, DTYPE_CODES[keys.dtype]
    pool.functions["cache_index_keys"](pool.handle, CACHE(*pointers, *numbers))


def select_keys(
    pool: Pool, query: Tensor, weights: Tensor, view: CacheView, layer: int, sizes: Latent, out: SelectedKeys
) -> None:
    """Choose the keys of each token: those with the highest scores, of equal ones the earlier.

    `query` [tokens, heads, index_dim], rotated; `weights` [tokens, heads] float32. A score is the sum over heads, in
    order, of weight / sqrt(heads) * max(query * key / sqrt(index_dim), 0), in float32.
    """
    rows, tables, (tokens, heads, index_dim) = view.cache.keys[layer], view.block_tables, query.shape
    _check_rows(rows, sizes, index_dim, query.dtype)
    assert query.stride()[1:] == (index_dim, 1), query.stride()
    assert weights.shape == (tokens, heads), weights.shape
    assert weights.dtype == torch.float32, weights.dtype
    assert weights.stride(1) == 1, weights.stride()
    _check_integers(tables, view.row_starts, view.kv_lens)
    _check_integers(out.tables, out.row_starts, out.kv_lens)
    assert len(out.tables) == tokens, out.tables.shape
    assert rows.shape[0] * rows.shape[2] <= MOST_SLOTS, rows.shape
    results = (each.data_ptr() for each in (out.tables, out.row_starts, out.kv_lens))
    requests = (each.data_ptr() for each in (tables, view.row_starts, view.kv_lens))
    pointers = *results, query.data_ptr(), weights.data_ptr(), _index_keys(rows, sizes), *requests
    strides = query.stride(0), weights.stride(0), rows.shape[3]
    numbers = tokens, len(view.kv_lens), tables.stride(0), rows.shape[2], heads, index_dim, out.tables.shape[1]
    scales = index_dim**-0.5, heads**-0.5, DTYPE_CODES[query.dtype]
    pool.functions["select_keys"](pool.handle, SELECT(*pointers, *strides, *numbers, *scales))


def attend_selected(
    pool: Pool,
    query: Tensor,
    selected: SelectedKeys,
    view: CacheView,
    layer: int,
    options: AttentionOptions,
    out: Tensor,
) -> Tensor:
    """`latent_attention` of each token over its selected keys. The same keys have the same bits as there."""
    rows = view.cache.keys[layer]
    assert rows.shape[1] == 1, rows.shape
    assert rows.is_contiguous()
    assert query.dtype == out.dtype == rows.dtype
    assert query.shape[2] <= min(rows.shape[3], MAX_HEAD_DIM), query.shape
    assert out.shape == (*query.shape[:2], out.shape[2])
    assert out.shape[2] <= query.shape[2]
    assert query.stride()[1:] == (query.shape[2], 1)
    assert out.stride()[1:] == (out.shape[2], 1)
    assert len(selected.tables) == len(query)
    assert options.mask == AttentionMask(), options.mask
    tables, starts, lens = selected.tables, selected.row_starts, selected.kv_lens
    cache = rows.data_ptr(), rows.data_ptr(), 0, 0
    requests = tables.data_ptr(), starts.data_ptr(), lens.data_ptr()
    pointers = out.data_ptr(), query.data_ptr(), *cache, *requests
    numbers = attention_numbers(query, out, options, len(lens), tables.stride(0), 1, 1)
    pool.functions[f"latent_attention_{NAMES[query.dtype]}"](
        pool.handle, ATTEND(*pointers, *numbers, out.shape[2], rows.shape[3])
    )
    return out


def _index_keys(rows: Tensor, sizes: Latent) -> int:
    """The address of the index key of slot 0."""
    return rows.data_ptr() + sizes.index_start * rows.element_size()


def _check_rows(rows: Tensor, sizes: Latent, index_dim: int, dtype: torch.dtype) -> None:
    assert rows.dtype == dtype, (rows.dtype, dtype)
    assert rows.shape[1] == 1, rows.shape
    assert sizes.index_start + cached_head_dim(index_dim) <= rows.shape[3] <= MAX_HEAD_DIM, rows.shape
    assert rows.is_contiguous()


def _check_integers(tables: Tensor, row_starts: Tensor, kv_lens: Tensor) -> None:
    assert tables.dtype == row_starts.dtype == kv_lens.dtype == torch.int32
    assert tables.stride(1) == row_starts.stride(0) == kv_lens.stride(0) == 1
    assert len(tables) == len(row_starts) - 1 == len(kv_lens)
