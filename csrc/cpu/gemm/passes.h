// Passes over a panel: the blocks of rows, and what each block prefetches.
#pragma once
#include "gemm/product_rows.h"

constexpr int SPARE_LINES = 2;  // per word of K, that a pass without a part of the panel prefetches

// Calls body(integral_constant<rows>, first_row, block, blocks) for blocks of at most MOST_ROWS rows, as even as can be.
template <class F, class Body> void for_blocks(int rows, Body body) {
  const int blocks = ceil_div(rows, MOST_ROWS<F>);
  for (int b = 0; b < blocks; b++) {
    const int from = share(rows, b, blocks), to = share(rows, b + 1, blocks);
    with_rows<MOST_ROWS<F>>(to - from, [&](auto n) { body(n, from, b, blocks); });
  }
}

// The number of cache lines that pass `pass` of `passes` prefetches per word of K, and the first of them. A word of a panel
// has four lines.
struct Prefetch {
  int lines, first;
};
constexpr Prefetch plan(int pass, int passes) {
  if (passes == 1) return {4, 0};
  if (passes == 2) return {2, 2 * pass};
  if (passes == 3) return pass == 0 ? Prefetch{2, 0} : Prefetch{1, pass + 1};
  return {pass < 4, pass};
}
