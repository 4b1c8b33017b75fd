// Products of many rows with 4-bit weights, in either order: the codes of groups are expanded to a panel of bfloat16 or float in
// the nearest caches, by which a slab of rows is multiplied.
#pragma once
#include "gemm/int4/groups.h"

// Two bfloat16 of each output: word j of `packed`, joined if the codes return it split.
template <class Codes> inline I32 whole_word(const Codes& codes, I32 packed, int j) {
  if constexpr (requires { codes.whole_word(packed, j); }) return codes.whole_word(packed, j);
  else {
    const Halves w = codes.word(packed, j);
    return ((w.even >> 16) & 0xffff) | w.odd;
  }
}

// `octets` octets of codes -> panel[octets * OCTET_WORDS][PANEL] words of bfloat16.
template <class Codes> [[gnu::noipa]] void expand_codes(char* panel, const char* octets, int count, const Codes& codes) {
  for (int c = 0; c < count; c++, octets += STEP_BYTES) {
    EACH(line, 4) prefetch<1>(octets + NEAR_BYTES + line * 64);
    for (int v = 0; v < PANEL_VECTORS; v++) {
      const I32 packed = load_words(octets + v * sizeof(I32));
      EACH(j, OCTET_WORDS) store_words(panel + (c * OCTET_WORDS + j) * STEP_BYTES + v * sizeof(I32), whole_word(codes, packed, j));
    }
  }
}

// The same -> panel[octets * OCTET_WORDS][2][PANEL] floats: of a word of bfloat16 the odd input, then the even one.
template <class Codes> [[gnu::noipa]] void expand_floats(char* panel, const char* octets, int count, const Codes& codes) {
  for (int c = 0; c < count; c++, octets += STEP_BYTES) {
    EACH(line, 4) prefetch<1>(octets + NEAR_BYTES + line * 64);
    EACH(v, PANEL_VECTORS) {
      const I32 packed = load_words(octets + v * sizeof(I32));
      EACH(j, OCTET_WORDS) {
        const Halves word = halves(codes.word(packed, j));
        char* to = panel + (c * OCTET_WORDS + j) * 2 * STEP_BYTES + v * sizeof(I32);
        store_words(to, word.odd), store_words(to + STEP_BYTES, word.even);
      }
    }
  }
}

// Rows times a panel into y, up to ROWS at a time. `add(sums, row, rows, panel, first, past)` adds to sums[rows][PANEL] the
// products of the rows from `row` on and groups [first, past).
template <int ROWS, class Add>
void multiply_slabs(const GemmInt4Params& params, const GemmParams& p, const Int4Layout& layout, const PanelRows& of, Add add) {
  alignas(64) float sums[ROWS * PANEL];
  SegmentSums<ROWS> segments;
  const char* panel = (const char*)p.weight + of.panel * layout.panel_bytes;
  const float* const units = params.units + of.panel * PANEL;
  const int groups = layout.groups / p.segments;  // of a segment
  for (int from = 0; from < of.rows; from += ROWS) {
    const int row = of.first_row + from, rows = std::min(ROWS, of.rows - from);
    for (int s = 0; s < p.segments; s++) {
      std::fill_n(sums, rows * PANEL, 0.0f);
      add(sums, row, rows, panel, s * groups, (s + 1) * groups);
      segments.take(s, 0, rows, PANEL, [&](int m, int c, int) { return load(sums + m * PANEL + c) * load(units + c); });
    }
    segments.finish(p, of, from, rows);
  }
}
