// Walks through the blocks of a row of a recurrent layer, and distributes rows among threads.
#pragma once
#include <algorithm>

#include "api.h"
#include "rows.h"

inline char* state_in_block(const StateRows& s, int row, int block) {
  return (char*)s.states + s.block_tables[(int64_t)row * s.table_stride + block] * s.block_stride;
}

// Calls advance(from, to, token, count) for each block that the row's tokens pass, in order: the state `from` (null: zeros)
// advances by `count` tokens from the step's token `token` on, and is stored at `to`, which may be `from`.
template <class Advance> void each_block(const StateRows& s, int row, Advance advance) {
  int token = s.row_starts[row], left = s.row_starts[row + 1] - token, position = s.kv_lens[row] - left;
  if (s.kv_lens[row] == 0) return;
  while (left > 0) {
    const int block = position / s.block_size, count = std::min(left, (block + 1) * s.block_size - position);
    const char* from = position ? state_in_block(s, row, (position - 1) / s.block_size) : nullptr;
    advance(from, state_in_block(s, row, block), token, count);
    token += count, position += count, left -= count;
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
