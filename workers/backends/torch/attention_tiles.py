"""The assignment of queries to tiles of keys in a step's attention, without arithmetic on keys or values."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...geometry.layer_options import AttentionMask
from ...kv.cache_view import CacheView

TILE_KEYS = 32  # keys per tile; tile t holds positions [32 t, 32 t + 32) for any block size
PAGE_KEYS = 16  # keys that are gathered together; every block size is a multiple
STRIP_TOKENS = 64  # the largest number of tokens of a chunk in a strip
BATCH_WORK = 4096  # padded tokens times tiles of one batch of products, which bounds temporary memory


@dataclass(frozen=True, slots=True)
class Strip:
    """Consecutive tokens of one row that visit the same tiles."""

    row: int
    first_token: int  # index into the batch's tokens
    num_tokens: int
    first_position: int
    first_tile: int
    last_tile: int  # inclusive
    last_key: int  # of its row


@dataclass(frozen=True, slots=True, eq=False)
class TileBatch:
    """Strips of the same padded length and all their tiles, arranged for batched products.

    Strips are in descending order of their number of tiles, and tiles in order of their index within the strip: the
    j-th tiles of all strips with more than j tiles are adjacent and belong to strips 0..n-1.

        strips (3, 2 and 1 tiles)   a b c | a b | a      <- tiles in memory; tiles_at = [3, 2, 1]
    """

    tokens: Tensor  # [strips, strip_tokens] i64, indices into the batch's tokens; the last is repeated as padding
    strip_tokens: int
    num_queries: int  # queries per KV head in a strip: strip_tokens * group size
    strip_of_tile: Tensor  # [tiles] i64
    pages: Tensor  # [tiles * pages per tile] i64, indices into the cache viewed as pages of PAGE_KEYS
    distances: Tensor  # [tiles, 1, num_queries, TILE_KEYS] i64: the key's position - the query's
    hidden: Tensor  # [tiles, 1, num_queries or 1, TILE_KEYS] bool: the query does not attend to the key
    tiles_at: list[int]


def strips_of(view: CacheView, mask: AttentionMask) -> list[Strip]:
    """Divide each row's tokens of this step into strips. A padding row has no keys and no strips."""
    strips, starts = [], view.row_starts.tolist()
    for row, kv_len in enumerate(view.kv_lens.tolist()):
        if kv_len == 0:
            continue
        start, end = starts[row], starts[row + 1]
        step = min(STRIP_TOKENS, max(8, 1 << (BATCH_WORK * TILE_KEYS // kv_len).bit_length() >> 1))
        for token in range(start, end, step):
            count = min(step, end - token)
            position = kv_len - (end - token)
            last_seen = kv_len - 1 if mask.is_bidirectional else position + count - 1
            tiles = mask.first_seen(position) // TILE_KEYS, last_seen // TILE_KEYS
            strips.append(Strip(row, token, count, position, *tiles, kv_len - 1))
    return strips


def tile_batches(view: CacheView, group_size: int, mask: AttentionMask) -> list[TileBatch]:
    """All strips of the step, in batches of the same padded length."""
    by_length: dict[int, list[Strip]] = {}
    for strip in strips_of(view, mask):
        by_length.setdefault(1 << (strip.num_tokens - 1).bit_length(), []).append(strip)
    batches = []
    for length, strips in sorted(by_length.items()):
        strips.sort(key=lambda strip: strip.first_tile - strip.last_tile)
        while strips:
            count, tiles = 0, 0
            while count < len(strips) and tiles * max(length, 16) < BATCH_WORK:
                tiles += strips[count].last_tile - strips[count].first_tile + 1
                count += 1
            batches.append(_tile_batch(view, group_size, mask, length, strips[:count]))
            strips = strips[count:]
    return batches


def _tile_batch(view: CacheView, group_size: int, mask: AttentionMask, length: int, strips: list[Strip]) -> TileBatch:
    device = view.positions.device
    most = strips[0].last_tile - strips[0].first_tile + 1
    tiles_at = [sum(s.last_tile - s.first_tile + 1 > place for s in strips) for place in range(most)]
    rows, first_tokens, counts, positions, first_tiles, last_keys = torch.tensor(
        [[s.row, s.first_token, s.num_tokens, s.first_position, s.first_tile, s.last_key] for s in strips],
        device=device,
    ).unbind(1)
    place = torch.repeat_interleave(torch.arange(most), torch.tensor(tiles_at)).to(device)
    strip_of_tile = torch.cat([torch.arange(count) for count in tiles_at]).to(device)

    first_seen = mask.first_seen_of(positions)
    offsets = torch.minimum(torch.arange(length, device=device), counts.unsqueeze(1) - 1)  # [strips, length]
    query_positions = (positions.unsqueeze(1) + offsets).repeat_interleave(group_size, 1)

    keys_from = (first_tiles[strip_of_tile] + place) * TILE_KEYS
    key_positions = keys_from.unsqueeze(1) + torch.arange(TILE_KEYS, device=device)  # [tiles, TILE_KEYS]
    distances = key_positions.unsqueeze(1) - query_positions[strip_of_tile].unsqueeze(2)
    after = last_keys[strip_of_tile, None, None]
    hidden = key_positions.unsqueeze(1) > after if mask.is_bidirectional else distances > 0
    if mask.window or mask.attention_chunk:
        hidden |= key_positions.unsqueeze(1) < mask.first_seen_of(query_positions)[strip_of_tile].unsqueeze(2)
    return TileBatch(
        tokens=first_tokens.unsqueeze(1) + offsets,
        strip_tokens=length,
        num_queries=length * group_size,
        strip_of_tile=strip_of_tile,
        pages=_pages(view, rows[strip_of_tile], keys_from, first_seen[strip_of_tile]),
        distances=distances.unsqueeze(1),
        hidden=hidden.unsqueeze(1),
        tiles_at=tiles_at,
    )


def _pages(view: CacheView, rows: Tensor, keys_from: Tensor, first_seen: Tensor) -> Tensor:
    """The pages of each tile. Pages before the first visible one are replaced by it, and pages after a row's last one
    by the last one, so that another row's block is never read."""
    pages_per_block = view.cache.block_size // PAGE_KEYS
    last_page = (view.kv_lens.to(rows.device, torch.int64)[rows] - 1) // PAGE_KEYS
    wanted = keys_from.unsqueeze(1) // PAGE_KEYS + torch.arange(TILE_KEYS // PAGE_KEYS, device=rows.device)
    page = torch.minimum(torch.maximum(wanted, (first_seen // PAGE_KEYS).unsqueeze(1)), last_page.unsqueeze(1))
    blocks = view.block_tables[rows.unsqueeze(1), page // pages_per_block].long()
    return (blocks * pages_per_block + page % pages_per_block).flatten()
