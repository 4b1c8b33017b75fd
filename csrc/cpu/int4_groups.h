// What the products with 4-bit weights in dot order and in tile order share: where groups lie, sums of x over them.
#pragma once
#include "quantize.h"
#include "segments.h"

constexpr int OCTET = 8, OCTET_WORDS = 4;
constexpr size_t SCALE_BYTES = PANEL * 2, ZERO_BYTES = PANEL;

struct Int4Layout {
  int groups, octets;  // of a panel, of a group
  size_t codes_at, group_bytes, panel_bytes;
};

inline Int4Layout layout_of(const GemmInt4Params& p) {
  const int groups = p.gemm.inputs / p.group_size, octets = p.group_size / OCTET;
  const size_t codes_at = SCALE_BYTES + (p.group_sums ? ZERO_BYTES : 0);
  const size_t group_bytes = codes_at + octets * STEP_BYTES;
  return {groups, octets, codes_at, group_bytes, groups * group_bytes};
}

// group_sums[row][group] = sum of x over the group, in 16 lanes.
template <class Element>
void sum_groups(Pool* pool, const GemmParams& p, const Int4Layout& layout, int group_size, float* sums) {
  pool->run(p.rows, std::max(1, p.rows / (2 * pool->size())), [&](int begin, int end) {
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
