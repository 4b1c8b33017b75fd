// Walks through the blocks of a row of a recurrent layer, and distributes rows among threads.
#pragma once
#include <algorithm>

#include "api.h"
#include "elementwise/rows.h"

inline char* state_in_block(const StateRows& s, int row, int block) {
  return (char*)s.states + s.block_tables[(int64_t)row * s.table_stride + block] * s.block_stride;
}

// The state before a position; null: zeros.
inline const char* state_before(const StateRows& s, int row, int position) {
  return position ? state_in_block(s, row, (position - 1) / s.block_size) : nullptr;
}

// Calls advance(from, to, token, count) for each block that the row's tokens pass, in order: the state `from` (null: zeros)
// advances by `count` tokens from the step's token `token` on, and is stored at `to`, which may be `from`. Drafts come last,
// with a `to` of null: their states are not stored.
template <class Advance> void each_block(const StateRows& s, int row, Advance advance) {
  int token = s.row_starts[row];
  const int kv_len = s.kv_lens[row];
  if (kv_len == 0) return;
  int position = kv_len - (s.row_starts[row + 1] - token);
  const int stored_len = s.stored_lens ? s.stored_lens[row] : kv_len;
  while (position < kv_len) {  // one call, so that it is inlined once
    const int block = position / s.block_size;
    const bool stores = position < stored_len;
    const int count = (stores ? std::min(stored_len, (block + 1) * s.block_size) : kv_len) - position;
    advance(state_before(s, row, position), stores ? state_in_block(s, row, block) : nullptr, token, count);
    token += count, position += count;
  }
}

// Calls body(row, part) for `parts` independent parts of each row, of `elements` of work per token, distributed among the
// threads. Chunks are the last rows of a step and the longest, so they come first.
template <class Body> void for_state_parts(Pool* pool, const StateRows& s, int parts, int64_t elements, Body body) {
  const int64_t items = (int64_t)s.rows * parts, work = std::max<int64_t>(1, s.row_starts[s.rows] * parts * elements);
  const int64_t worthwhile = std::max<int64_t>(1, FEWEST_ELEMENTS * items / work);
  pool->run((int)items, (int)worthwhile, [&](int begin, int end) {
    for (int item = begin; item < end; item++) body(s.rows - 1 - item / parts, item % parts);
  });
}
