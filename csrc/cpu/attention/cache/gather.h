// Keys that a table lists one by one (block size 1): sparse attention. The rows of a tile are copied to scratch memory, where the
// keys of a stream are adjacent, and then take the same way as those of blocks. So the same keys have the same bits.
//
// Cost    one core of Zen 3, rows of 576 elements: 6 % of the time of 128 heads, 14 % of that of 16 heads
#pragma once
#include "attention/attention.h"
#include "attention/plan.h"

inline bool lists_rows(const AttentionParams& p) { return p.block_size == 1; }

// A tile of the unit, copied to `to` [TILE_KEYS][row_bytes], with zeros for what no token attends to. Rows of the cache are
// `stride` bytes apart; keys and values are the same.
inline Tile gather(const AttentionParams& p, const Unit& unit, int tile, size_t row_bytes, size_t stride, char* to) {
  Tile found;
  const int32_t* table = p.block_tables + (int64_t)unit.request * p.table_stride;
  for (int s = 0; s < 2 * STREAMS; s++) {
    Half& half = found.halves[s / STREAMS];
    const int first = tile * TILE_KEYS + s * STREAM_KEYS;
    const bool is_seen = first < unit.seen_to && first + STREAM_KEYS > unit.seen_from;
    char* stream = to + s * STREAM_KEYS * row_bytes;
    half.keys[s % STREAMS] = half.values[s % STREAMS] = is_seen ? stream : ZEROS;
    half.rows[s % STREAMS] = -1;
    for (int key = first; is_seen && key < first + STREAM_KEYS; key++, stream += row_bytes) {
      if (key < unit.seen_from || key >= unit.seen_to) std::memset(stream, 0, row_bytes);
      else std::memcpy(stream, (const char*)p.keys + table[key] * stride, row_bytes);
      if (key + TILE_KEYS < unit.seen_to)
        for (size_t line = 0; line < row_bytes; line += 64) prefetch<2>((const char*)p.keys + table[key + TILE_KEYS] * stride + line);
    }
  }
  return found;
}
