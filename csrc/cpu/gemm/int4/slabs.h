// Products of many rows with 4-bit weights, in either order: the codes of a group are expanded to a panel of bfloat16 in the
// nearest caches, by which a slab of rows is multiplied.
#pragma once
#include "gemm/int4/groups.h"

// `octets` octets of codes -> panel[octets * OCTET_WORDS][PANEL] words of bfloat16.
template <class Codes> [[gnu::noipa]] void expand_codes(char* panel, const char* codes, int octets, const Codes& table) {
  const auto whole = [](auto w) {  // joins the word that Int4Codes returns split on some instruction sets
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

// Rows times a panel into y, up to ROWS at a time. `add(sums, row, rows, group, g)` adds to sums[rows][PANEL] the products of
// the rows from `row` on and group g.
template <int ROWS, class Add>
void multiply_slabs(const GemmInt4Params& params, const GemmParams& p, const Int4Layout& layout, const PanelRows& of, Add add) {
  alignas(64) float sums[ROWS * PANEL];
  SegmentSums<ROWS> segments;
  const char* panel = (const char*)p.weight + of.panel * layout.panel_bytes;
  const F32 unit = splat(params.scale_unit);
  const int groups = layout.groups / p.segments;  // of a segment
  for (int from = 0; from < of.rows; from += ROWS) {
    const int row = of.first_row + from, rows = std::min(ROWS, of.rows - from);
    for (int s = 0; s < p.segments; s++) {
      std::fill_n(sums, rows * PANEL, 0.0f);
      for (int g = s * groups; g < (s + 1) * groups; g++) add(sums, row, rows, panel + g * layout.group_bytes, g);
      segments.take(s, 0, rows, PANEL, [&](int m, int c, int) { return load(sums + m * PANEL + c) * unit; });
    }
    finish(p, of, from, rows, [&](int m, int c, int) { return segments.total(p.segments, m, c); });
  }
}
