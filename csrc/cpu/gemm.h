// What every matrix product shares: the walk over panels and blocks of rows, the plan of prefetches, the epilogue.
//
// Threads share the panels of the outputs; a panel is taken through all rows of a chunk while it lies in cache. K is
// never split. There are more chunks of rows than one only when there are too few panels to keep every thread busy.
#pragma once
#include <algorithm>

#include "api.h"
#include "pool.h"
#include "tile.h"

constexpr int NEAR_BYTES = 4096;  // how far ahead a panel is prefetched that is read only once
constexpr int ITEMS_PER_THREAD = 4;

inline int ceil_div(int a, int b) { return (a + b - 1) / b; }
inline int share(int total, int part, int parts) { return (int)((int64_t)total * part / parts); }

// Calls body(integral_constant<rows>, panel, first_row, block, blocks) for every panel and every block of at most
// MAX_ROWS rows; the blocks of a chunk are as even as can be, and numbered from 0.
template <class Body> void for_tiles(Pool* pool, int rows, int outputs, Body body) {
  const int panels = ceil_div(outputs, PANEL), wanted = ITEMS_PER_THREAD * pool->size();
  const int chunks = pool->size() == 1 ? 1 : std::clamp(ceil_div(wanted, panels), 1, ceil_div(rows, 4 * MAX_ROWS));
  const int grain = std::max(1, panels * chunks / wanted);
  pool->run(panels * chunks, grain, [&](int begin, int end) {
    for (int item = begin; item < end; item++) {
      const int panel = item / chunks, chunk = item % chunks;
      const int first = share(rows, chunk, chunks), count = share(rows, chunk + 1, chunks) - first;
      const int blocks = ceil_div(count, MAX_ROWS);
      for (int b = 0; b < blocks; b++) {
        const int from = share(count, b, blocks), to = share(count, b + 1, blocks);
        with_rows(to - from, [&](auto n) { body(n, panel, first + from, b, blocks); });
      }
    }
  });
}

// out[ROWS][PANEL] = x * panel. While the only pass over a panel runs, the panel itself is prefetched a little ahead;
// otherwise the next panel is, spread over the first passes, so that memory and arithmetic overlap at any number of rows.
template <class F, int ROWS, class Out>
void planned_product(Out* out, const char* x, size_t x_stride, const char* panel, int words, size_t panel_bytes,
                     int block, int blocks) {
  constexpr int N = STRIPS<ROWS>;
  const size_t one_line = (size_t)words * 64;  // bytes that one line a word covers
  for (int s = 0; s < N; s++) {
    const int pass = block * N + s, passes = blocks * N;
    const auto run = [&](auto lines, const char* ahead) {
      strip_product<F, ROWS, lines, false>(out + s * STRIP<ROWS> * LANES, PANEL, nullptr, x, x_stride,
                                           panel + s * STRIP<ROWS> * sizeof(I32), words, ahead);
    };
    const char* next = panel + panel_bytes;
    if (passes == 1) run(std::integral_constant<int, 4>{}, panel + NEAR_BYTES);
    else if (passes < 4 && pass < 2) run(std::integral_constant<int, 2>{}, next + pass * 2 * one_line);
    else if (passes >= 4 && pass < 4) run(std::integral_constant<int, 1>{}, next + pass * one_line);
    else run(std::integral_constant<int, 0>{}, nullptr);
  }
}

// Adds bias and residual to `rows` rows of a tile, whose first row and output are given, and rounds it into y.
inline void finish(const GemmParams& p, const float* tile, int rows, int first_row, int first_output) {
  const auto floats = [&](const float* at, int n) { return n == LANES ? load(at) : load_n(at, n); };
  const auto halves = [&](const uint16_t* at, int n) { return n == LANES ? load_bf16(at) : load_bf16_n(at, n); };
  for (int m = 0; m < rows; m++) {
    const int64_t row = (int64_t)(first_row + m) * p.y_stride;
    for (int c = 0; c < PANEL && first_output + c < p.outputs; c += LANES) {
      const int output = first_output + c, n = std::min(LANES, p.outputs - output);
      const int64_t at = row + output;
      F32 y = load(tile + m * PANEL + c);
      if (p.bias) y += floats(p.bias + output, n);
      if (p.y_is_float) {
        if (p.residual) y += floats((const float*)p.residual + at, n);
        n == LANES ? store((float*)p.y + at, y) : store_n((float*)p.y + at, y, n);
      } else {
        if (p.residual) y += halves((const uint16_t*)p.residual + at, n);
        n == LANES ? store_bf16((uint16_t*)p.y + at, y) : store_bf16_n((uint16_t*)p.y + at, y, n);
      }
    }
  }
}
