// Shared by the products with 4-bit weights in dot order and in tile order: the layout of groups, sums of x over groups.
#pragma once
#include "gemm/quantize.h"
#include "gemm/segments.h"

constexpr int OCTET = 8, OCTET_WORDS = 4;
constexpr size_t SCALE_BYTES = PANEL * 2, ZERO_BYTES = PANEL;

// Both inputs of what codes return as a word.
inline Halves halves(I32 word) { return {even_half(word), odd_half(word)}; }
inline Halves halves(const Halves& word) { return word; }

struct Int4Layout {
  int groups, octets;  // groups per panel, octets per group
  size_t codes_at, group_bytes, panel_bytes;
};

inline Int4Layout layout_of(const GemmInt4Params& p) {
  const int groups = p.gemm.inputs / p.group_size, octets = p.group_size / OCTET;
  const size_t codes_at = SCALE_BYTES + (p.group_sums ? ZERO_BYTES : 0);
  const size_t group_bytes = codes_at + octets * STEP_BYTES;
  return {groups, octets, codes_at, group_bytes, groups * group_bytes};
}

// sums[row][PANEL] += (product - zero * sum of x) * scale for a group, in N vectors of outputs from `output` on.
// `of_x`: sums of x over the group, layout.groups apart; null without zero points.
template <int ROWS, int N>
inline void add_scaled(float* sums, const F32 (&product)[ROWS][N], const char* group, int output, const Int4Layout& layout,
                       const float* of_x) {
  EACH(v, N) {
    const int at = output + v * LANES;
    const F32 scale = load_fp16(group + at * 2);
    const F32 zero = of_x ? load_u8(group + SCALE_BYTES + at) : splat(0.0f);
    EACH(m, ROWS) {
      F32 value = product[m][v];
      if (of_x) value = fma(splat(-of_x[m * layout.groups]), zero, value);
      store(sums + m * PANEL + at, fma(value, scale, load(sums + m * PANEL + at)));
    }
  }
}

// group_sums[row][group] = sum of x over the group, in 16 lanes.
template <class Element>
void sum_groups(Pool* pool, const GemmParams& p, int rows, const Int4Layout& layout, int group_size, float* sums) {
  pool->run(rows, std::max(1, rows / (2 * pool->size())), [&](int begin, int end) {
    for (int m = begin; m < end; m++)
      for (int g = 0; g < layout.groups; g++) {
        const Element* x = (const Element*)p.x + m * p.x_stride + (int64_t)g * group_size;
        Wide total;
        for (int i = 0; i < group_size; i += WIDE)
          EACH(v, WIDE_VECTORS) {
            const int from = i + v * LANES;
            if (from < group_size) total.part[v] += get(x + from, group_size - from);
          }
        sums[(int64_t)m * layout.groups + g] = sum(total);
      }
  });
}
