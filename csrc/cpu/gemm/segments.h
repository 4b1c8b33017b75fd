// Products over K in segments, each summed separately from 0; the segments' sums are added as (0 + 1) + (2 + 3).
//
// Two processes with two segments each, or four with one, add the same numbers in the same order as one with all four:
// sums of tensor-parallel ranks have the bits of a single rank's. A segment's chain restarts in registers, so each segment
// costs one pass over a tile of sums in the nearest cache.
#pragma once
#include "gemm/gemm.h"

constexpr int SLAB_BLOCKS = 8;  // of rows that are multiplied by a panel's segments in turn: at most 48 KB of sums

// Two sums of [rows][PANEL]: of segments 0 and 1, and of 2 and 3.
template <int ROWS> struct SegmentSums {
  alignas(64) float pairs[2][ROWS * PANEL];

  // Adds `rows` rows of a segment, from `first` on; value(m, c, n) returns row m from column c on; n lanes of it are used.
  template <class Value> [[gnu::noinline]] void take(int segment, int first, int rows, int width, Value value) {
    float* sum = pairs[segment / 2] + first * PANEL;
    for (int m = 0; m < rows; m++)
      for (int c = 0; c < width; c += LANES) {
        const F32 part = value(m, c, std::min(LANES, width - c));
        float* at = sum + m * PANEL + c;
        store(at, segment % 2 ? load(at) + part : part);
      }
  }

  // As the function of that name.
  void finish(const GemmParams& p, const PanelRows& of, int first_row, int rows) const {
    ::finish(p, of, first_row, rows, pairs[0], p.segments > 2 ? pairs[1] : nullptr);
  }
};

// The layout of a product's segments.
struct SegmentPlan {
  size_t x_stride, x_step;  // bytes from a row of x to the next, and from a segment to the next
  int words;                // of K, per segment
};

// x [rows] times one panel into y. value(out, row, segment, m, c, n) turns `out`, the products of a segment, into numbers of
// row + m.
template <class F, class Out, class Value>
void segmented_product(const GemmParams& p, const SegmentPlan& plan, const char* x, const PanelRows& of, const char* panel, Value value,
                       Upcoming* upcoming = nullptr) {
  SegmentSums<SLAB_BLOCKS * MOST_ROWS<F>> sums;
  const int blocks = ceil_div(of.rows, MOST_ROWS<F>), slabs = ceil_div(blocks, SLAB_BLOCKS), width = std::min(PANEL, p.outputs - of.first_output);
  for (int slab = 0; slab < slabs; slab++) {
    const int from = share(of.rows, share(blocks, slab, slabs), blocks);
    const int count = share(of.rows, share(blocks, slab + 1, slabs), blocks) - from;
    for (int s = 0; s < p.segments; s++)
      panel_product<F, Out>(x + from * plan.x_stride + s * plan.x_step, plan.x_stride, count, panel + s * plan.words * STEP_BYTES,
                            plan.words, [&](int n, int row, const Out* out) {
        sums.take(s, row, n, width, [&](int m, int c, int lanes) { return value(out, of.first_row + from + row, s, m, c, lanes); });
      }, upcoming);
    sums.finish(p, of, from, count);
  }
}
