// Products of several blocks of rows with 16-bit weights that are widened to float once for all blocks. Per word of K, a
// block of six rows takes 48 FMAs, with which the 8 or 16 instructions that widen its weights compete. The first block
// stores what it widens, which costs its FMAs nothing; a separate pass that only widens takes longer than a block.
#pragma once
#include "gemm/product_rows.h"

// With sixteen lanes a block of rows has sums for a whole panel.
template <class F> constexpr bool SHARES_WIDENED = LANES == 16 && WordLayout<F>::PARTS == 2;
constexpr int WIDENED_WORDS = 48, MOST_WIDENED_WORDS = 256;  // of K at once: 24 KB, and with many rows 128 KB
constexpr int MANY_BLOCKS = 12;
constexpr int WIDENED_BLOCKS = 20;  // of rows that share them: 30 KB of sums

// out[ROWS][PANEL] += x * panel over `words` words of K, which are widened into wide[words][2][PANEL]. Prefetches as `tile`.
template <class F, int ROWS, int LINES>
[[gnu::noipa]] void widening_product(float* out, const char* x, size_t x_stride, const char* panel, int words, char* wide, const char* ahead) {
  using Layout = WordLayout<F>;
  constexpr int N = PANEL_VECTORS;
  F32 acc[ROWS][N];
  EACH(m, ROWS) EACH(v, N) acc[m][v] = load(out + m * PANEL + v * LANES);
  EACH(m, ROWS) EACH(v, N) opaque(acc[m][v]);  // as in tile.h
#pragma GCC unroll 1
  for (int k = 0; k < words; k++, panel += STEP_BYTES, x += Layout::X_BYTES, ahead += LINES * 64, wide += 2 * STEP_BYTES) {
    EACH(part, Layout::PARTS) {
      const auto weights = [&](int v) {
        const I32 widened = Layout::weights(panel, v, part);
        store_words(wide + part * STEP_BYTES + v * sizeof(I32), widened);
        return widened;
      };
      step<F, ROWS, N>(acc, x + Layout::x(part), x_stride, weights, [](int) {});
    }
    EACH(line, LINES) prefetch<2>(ahead + line * 64);
  }
  EACH(m, ROWS) EACH(v, N) store(out + m * PANEL + v * LANES, acc[m][v]);
}

// Block `block` of `blocks`: the first one widens, the others multiply by what it stored.
template <class F, int ROWS>
void widened_block(float* out, const char* x, size_t x_stride, const char* panel, int words, char* wide, int block, int blocks, Upcoming* upcoming) {
  Prefetch p = plan(block, blocks);
  const char* ahead = panel + words * (STEP_BYTES + p.first * 64);
  if (p.lines == 0 && upcoming)
    if (const char* piece = upcoming->next((int64_t)words * SPARE_LINES * 64)) ahead = piece, p.lines = SPARE_LINES;
  const auto run = [&](auto lines) {
    if (block == 0) widening_product<F, ROWS, lines>(out, x, x_stride, panel, words, wide, ahead);
    else strip_product<Widened, ROWS, lines, Start::ADD>(out, PANEL, nullptr, x, x_stride, wide, words, ahead, 0);
  };
  if (p.lines == 2) run(std::integral_constant<int, 2>{});
  else if (p.lines == 1) run(std::integral_constant<int, 1>{});
  else run(std::integral_constant<int, 0>{});
}

// Like panel_product, for more rows than one block has.
template <class F, class Done>
void widened_product(const char* x, size_t x_stride, int rows, const char* panel, int words, Done done, Upcoming* upcoming) {
  constexpr int MOST = WIDENED_BLOCKS * MOST_ROWS<F>;
  alignas(64) char wide[MOST_WIDENED_WORDS * 2 * STEP_BYTES];
  alignas(64) float out[MOST * PANEL];
  const int slabs = ceil_div(rows, MOST);
  for (int slab = 0; slab < slabs; slab++) {
    const int first = share(rows, slab, slabs), count = share(rows, slab + 1, slabs) - first;
    const int most = ceil_div(count, MOST_ROWS<F>) < MANY_BLOCKS ? WIDENED_WORDS : MOST_WIDENED_WORDS;
    std::fill_n(out, count * PANEL, 0.0f);
    for (int k = 0; k < words; k += most)
      for_blocks<F>(count, [&](auto n, int row, int block, int blocks) {
        if constexpr (n >= (MOST_ROWS<F> + 1) / 2)
          widened_block<F, n>(out + row * PANEL, x + (first + row) * x_stride + (size_t)k * WordLayout<F>::X_BYTES, x_stride,
                              panel + k * STEP_BYTES, std::min(most, words - k), wide, block, blocks, upcoming);
        else __builtin_trap();  // the rows would be left out: blocks are as even as can be
      });
    for_blocks<F>(count, [&](auto n, int row, int, int) { done(n, first + row, out + row * PANEL); });
  }
}
