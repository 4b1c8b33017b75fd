// Shared by all matrix products: the loops over panels and blocks of rows, the plan of prefetches, the epilogue.
//
// Threads divide the panels of the outputs. Each thread has its own span, so that the panel that it prefetches is the one
// that it takes next; a panel is multiplied by all rows while it is in the cache. K is never divided. Rows are divided if
// there are too few panels to keep every thread busy, and at the end, when a thread that has finished helps another.
#pragma once
#include "elements.h"
#include "gemm/product_rows.h"
#include "gemm/widened.h"

constexpr int NEAR_BYTES = 8192;    // the prefetch distance in a panel that is read once
// Of K, for a panel that is read a few times: 64 KB, or, where a core multiplies floats rather than words (Intel), 16 KB.
constexpr bool SMALL_CHUNKS = LANES == 16 && WIDENS_BF16;
constexpr int CHUNK_WORDS = SMALL_CHUNKS ? 64 : 256;
// Whether each pass over a chunk prefetches an equal share of the next one, if there are five or more: if only
// the first four did, a line per word, they would ask for more than memory can serve, and the others for nothing. With AVX2 only for float32.
template <class F> constexpr bool SHARES_EVENLY = SMALL_CHUNKS || (LANES == 8 && std::is_same_v<F, Fp32>);
template <class F> constexpr int MAX_CHUNKED_BLOCKS = SHARES_EVENLY<F> ? 8 : 3;
constexpr int FEWEST_WIDENED = 16384;  // inputs per additional thread
constexpr size_t WIDENED_BYTES = 32 << 20;  // of widened rows; the weights are read once for that many rows
constexpr int FEWEST_SLAB_ROWS = 64;

template <class F, int OF_BLOCK> constexpr Prefetch plan_in_panel(int pass, int passes) {
  if (SHARES_EVENLY<F> && passes > 4 && passes <= MAX_CHUNKED_BLOCKS<F> * OF_BLOCK) return {EVENLY, pass};
  return plan(pass, passes);
}

// Whether a pass of a block of ROWS rows may prefetch `lines` lines per word of K. Products that cannot be are not compiled:
// blocks are as even as can be, so one with few rows is the only one.
template <class F, int ROWS, Start START> constexpr bool prefetches(int lines) {
  constexpr int N = STRIPS<ROWS>, FEWEST_ROWS = (MOST_ROWS<F> + 1) / 2;
  for (int blocks = 1; blocks <= (ROWS < FEWEST_ROWS ? 1 : MAX_CHUNKED_BLOCKS<F> + 2); blocks++) {
    const bool is_whole = blocks == 1 || blocks > MAX_CHUNKED_BLOCKS<F>;
    for (int pass = 0; pass < N * blocks && !(is_whole && START == Start::ADD); pass++) {
      const int own = plan_in_panel<F, N>(pass, N * blocks).lines;
      if (own == lines || (own == 0 && is_whole && lines == SPARE_LINES)) return true;
    }
  }
  return false;
}

// out[ROWS][PANEL] = x * panel, or +=, over `words` words of K; this is block `block` of `blocks`. If it is the only pass
// over the panel, the panel is prefetched a little ahead. Otherwise each of the first passes prefetches an equal part of
// the memory after these words, so that memory and arithmetic overlap for any number of rows; the others prefetch
// what `upcoming` has.
template <class F, int ROWS, Start START, class Out>
void block_product(Out* out, const char* x, size_t x_stride, const char* panel, int words, int block, int blocks,
                   Upcoming* upcoming) {
  constexpr int N = STRIPS<ROWS>;
  const int passes = blocks * N;
  for (int s = 0; s < N; s++) {
    const int pass = block * N + s;
    Prefetch p = plan_in_panel<F, N>(pass, passes);
    const size_t skipped = p.lines == EVENLY ? words * STEP_BYTES * pass / passes : (size_t)words * p.first * 64;
    const char* ahead = panel + (p.lines == 4 ? NEAR_BYTES : words * STEP_BYTES + skipped);
    if (p.lines == 0 && upcoming)
      if (const char* piece = upcoming->next((int64_t)words * SPARE_LINES * 64)) ahead = piece, p.lines = SPARE_LINES;
    const auto run_if = [&](auto lines) {
      if constexpr (!prefetches<F, ROWS, START>(lines)) return false;
      else {
        if (p.lines != lines) return false;
        strip_product<F, ROWS, lines, START>(out + s * STRIP<ROWS> * LANES, PANEL, nullptr, x, x_stride,
                                             panel + s * STRIP<ROWS> * sizeof(I32), words, ahead,
                                             lines == EVENLY ? STEP_BYTES / passes : 0);
        return true;
      }
    };
    if (!(run_if(std::integral_constant<int, 4>{}) || run_if(std::integral_constant<int, 2>{}) ||
          run_if(std::integral_constant<int, 1>{}) || run_if(std::integral_constant<int, 0>{}) ||
          run_if(std::integral_constant<int, EVENLY>{})))
      __builtin_trap();  // otherwise a product without an instance would be left out
  }
}

// x [rows] times one panel. done(integral_constant<rows>, first_row, out) receives each finished block, out[rows][PANEL].
// A panel that is read a few times is divided into chunks of K: they arrive from memory evenly, and are read again while
// they are in a near cache; the accumulators are kept in memory. With many passes the time to read a panel is hidden anyway.
template <class F, class Out, class Done>
void panel_product(const char* x, size_t x_stride, int rows, const char* panel, int words, Done done,
                   Upcoming* upcoming = nullptr) {
  if constexpr (SHARES_WIDENED<F>)
    if (rows > MOST_ROWS<F>) return widened_product<F>(x, x_stride, rows, panel, words, done, upcoming);
  alignas(64) Out out[MAX_CHUNKED_BLOCKS<F> * MOST_ROWS<F> * PANEL];
  const int blocks = ceil_div(rows, MOST_ROWS<F>);
  if (blocks == 1 || blocks > MAX_CHUNKED_BLOCKS<F>) {
    for_blocks<F>(rows, [&](auto n, int row, int block, int) {
      block_product<F, n, Start::ZERO>(out, x + row * x_stride, x_stride, panel, words, block, blocks, upcoming);
      done(n, row, out);
    });
    return;
  }
  for (int k = 0; k == 0 || k < words; k += CHUNK_WORDS) {  // a single bfloat16 input has no whole word: zeros
    const int count = std::min(CHUNK_WORDS, words - k);
    for_blocks<F>(rows, [&](auto n, int row, int block, int) {
      const auto part = k ? block_product<F, n, Start::ADD, Out> : block_product<F, n, Start::ZERO, Out>;
      part(out + row * PANEL, x + row * x_stride + (size_t)k * WordLayout<F>::X_BYTES, x_stride, panel + k * STEP_BYTES, count, block, blocks, nullptr);
    });
  }
  for_blocks<F>(rows, [&](auto n, int row, int, int) { done(n, row, out + row * PANEL); });
}

// Adds bias and residual to a tile of sums[rows][PANEL] and rounds it into y: `rows` rows of `of`, from its row `first_row`
// on. `more`, if not null, are sums that are added first. finish.cpp
void finish(const GemmParams& p, const PanelRows& of, int first_row, int rows, const float* sums, const float* more = nullptr);

// The same for a tile of which `value(m, c, n)` returns row m from column c on; n lanes of it are used.
template <class Value> void finish_values(const GemmParams& p, const PanelRows& of, int first_row, int rows, Value value) {
  constexpr int TOGETHER = 8;  // rows: 2 KB
  alignas(64) float sums[TOGETHER * PANEL];
  const int width = std::min(PANEL, p.outputs - of.first_output);
  for (int from = 0; from < rows; from += TOGETHER) {
    const int count = std::min(TOGETHER, rows - from);
    for (int m = 0; m < count; m++)
      for (int c = 0; c < width; c += LANES) store(sums + m * PANEL + c, value(from + m, c, std::min(LANES, width - c)));
    finish(p, of, first_row + from, count, sums);
  }
}

// Memory of the calling thread for rows in the layout of a product.
inline Arena& row_arena() {
  thread_local Arena arena;
  return arena;
}

// Calls body(product, rows, first_row) for one slab of rows after another, each row widened to `inputs` Numbers by
// widen(row, to). A slab has as many rows as fit into WIDENED_BYTES.
template <class Number, class Widen, class Body>
void for_slabs(Pool* pool, const GemmParams& p, const ProductRows& all, int inputs, Widen widen, Body body) {
  const int stride = inputs + (int)(64 / sizeof(Number));  // rows start in different sets of a cache
  const int most = std::max(FEWEST_SLAB_ROWS, (int)(WIDENED_BYTES / (stride * sizeof(Number))));
  const int slabs = ceil_div(all.total(), most);
  for (int slab = 0; slab < slabs; slab++) {
    const int first = share(all.total(), slab, slabs), rows = share(all.total(), slab + 1, slabs) - first;
    Number* wide = (Number*)row_arena().reserve((size_t)rows * stride * sizeof(Number));
    pool->run(rows, std::max(1, std::max(FEWEST_WIDENED / inputs, rows / (4 * pool->size()))), [&](int begin, int end) {
      for (int m = begin; m < end; m++) widen(first + m, wide + (int64_t)m * stride);
    });
    const int64_t y_bytes = first * p.y_stride * (p.y_dtype == DTYPE_FP32 ? sizeof(float) : sizeof(uint16_t));
    GemmParams part = p;
    part.x = wide, part.x_stride = stride, part.inputs = inputs;
    part.y = (char*)p.y + y_bytes, part.residual = p.residual ? (const char*)p.residual + y_bytes : nullptr;
    body(part, all.slab(first, rows), first);
  }
}

// The same with rows of Element widened to float as for Fp16 and WideBf16 in tile.h, with a zero after an odd number of
// inputs.
template <class Element, class Body> void for_widened(Pool* pool, const GemmParams& p, const ProductRows& all, Body body) {
  const int inputs = (p.inputs + 1) / 2 * 2;
  const auto widen = [&](int m, float* to) {
    const Element* x = (const Element*)p.x + m * p.x_stride;
    for (int i = 0; i < inputs; i += LANES) put(to + i, get(x + i, p.inputs - i), inputs - i);
  };
  for_slabs<float>(pool, p, all, inputs, widen, body);
}
