// Products of many rows with 4-bit weights, in either order: the codes of a group become a panel of bfloat16 in the nearest
// caches, which a slab of rows passes.
#pragma once
#include "int4_groups.h"

// `octets` octets of codes -> panel[octets * OCTET_WORDS][PANEL] words of bfloat16.
[[gnu::noipa]] inline void expand_codes(char* panel, const char* codes, int octets, const Int4Codes& table) {
  const auto whole = [](auto w) {  // the word that Int4Codes gives whole or split, as the instruction set multiplies it
    if constexpr (requires { w.even; }) return ((w.even >> 16) & 0xffff) | w.odd;
    else return w;
  };
  for (int c = 0; c < octets; c++, codes += STEP_BYTES) {
    EACH(line, 4) prefetch<1>(codes + NEAR_BYTES + line * 64);
    EACH(v, PANEL_VECTORS) {
      const I32 packed = load_words(codes + v * sizeof(I32));
      EACH(j, OCTET_WORDS) store_words(panel + (c * OCTET_WORDS + j) * STEP_BYTES + v * sizeof(I32), whole(table.word(packed, j)));
    }
  }
}

// sums[PANEL] += what a row has of a group, of its product with the codes; `row` counts those of group_sums.
inline void add_scaled(float* sums, const float* product, const GemmInt4Params& p, const Int4Layout& layout, const char* group,
                       int index, int64_t row) {
  const F32 of_x = splat(p.group_sums ? -p.group_sums[row * layout.groups + index] : 0.0f);
  EACH(v, PANEL_VECTORS) {
    const int c = v * LANES;
    F32 value = load(product + c);
    if (p.group_sums) value = fma(of_x, load_u8(group + SCALE_BYTES + c), value);
    store(sums + c, fma(value, load_fp16(group + c * 2), load(sums + c)));
  }
}

// Rows [first_row, first_row + count) times panel number `index` into y, up to ROWS at a time. `multiply(out, row, rows, group,
// index)`: out[rows][PANEL] = rows from `row` on times the codes of a group. The first row of `p` is number `offset` of all.
template <int ROWS, class Multiply>
void multiply_slabs(const GemmInt4Params& params, const GemmParams& p, const Int4Layout& layout, int index, int first_row,
                    int count, int offset, Multiply multiply) {
  alignas(64) float product[ROWS * PANEL], sums[ROWS * PANEL];
  SegmentSums<ROWS> segments;
  const char* panel = (const char*)p.weight + index * layout.panel_bytes;
  const F32 unit = splat(params.scale_unit);
  const int groups = layout.groups / p.segments;  // of a segment
  for (int from = 0; from < count; from += ROWS) {
    const int row = first_row + from, rows = std::min(ROWS, count - from);
    for (int s = 0; s < p.segments; s++) {
      std::fill_n(sums, rows * PANEL, 0.0f);
      for (int g = s * groups; g < (s + 1) * groups; g++) {
        const char* group = panel + g * layout.group_bytes;
        multiply(product, row, rows, group, g);
        for (int m = 0; m < rows; m++)
          add_scaled(sums + m * PANEL, product + m * PANEL, params, layout, group, g, offset + row + m);
      }
      segments.take(s, 0, rows, PANEL, [&](int m, int c, int) { return load(sums + m * PANEL + c) * unit; });
    }
    finish(p, rows, row, index * PANEL, [&](int m, int c, int) { return segments.total(p.segments, m, c); });
  }
}
