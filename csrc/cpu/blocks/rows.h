// Activations in int8, in groups of 32 inputs with a scale each: x = codes * scale, codes in -127..127.
//
// The scale is the group's highest magnitude / 127, so a row's error is at most that of ggml's Q8_0, and below that of its
// Q8_K, which has a scale for 256 inputs. The scale of a group that contains a NaN or an infinity is NaN. Then, and with a
// scale of 0, below the normal numbers, all codes are 0.
#pragma once
#include <cstring>

#include "gemm/gemm.h"

constexpr int ROW_GROUP = 32;
constexpr int FEWEST_ROW_INPUTS = 8192;  // to quantize, per additional thread

// What the products need of a group besides its codes.
struct RowGroup {
  float scale;
  // Of each half in formats with groups of 16:
  float of_least[2];  // -scale * sum of codes, which minimums are multiplied by
  int32_t start[2];   // -centre * sum of codes, where dots begin
};

struct BlockRows {
  const char* codes;  // [rows, stride]
  const RowGroup* groups;
  size_t stride;      // bytes
  int groups_per_row;
};

// The layout of codes in rows for products by F: the bytes, or in 16 bits each.
template <class F> constexpr int CODE_BYTES = WordLayout<F>::X_BYTES / WORD_BYTES;

template <class Element> inline void quantize_group(const Element* x, int8_t* codes, RowGroup& group, int centre, bool in_halves) {
  constexpr int VECTORS = ROW_GROUP / LANES, HALF = VECTORS / 2;
  F32 value[VECTORS];
  I32 top = splat(0);
  EACH(v, VECTORS) {
    value[v] = get(x + v * LANES, LANES);
    const I32 magnitude = (I32)abs(value[v]);
    top = magnitude > top ? magnitude : top;  // of bits, among which NaN is above infinity
  }
  const I32 infinity = splat(0x7f800000);
  const float peak = highest((F32)(top < infinity ? top : infinity));
  group.scale = peak < __builtin_inff() ? peak / 127.0f : __builtin_nanf("");
  const bool has_codes = group.scale > 0.0f;  // without them all are 0
  const F32 inverse = splat(127.0f / peak);
  I32 sums[2] = {splat(0), splat(0)};
  EACH(v, VECTORS) {
    const I32 code = has_codes ? to_int(value[v] * inverse) : splat(0);
    sums[v / HALF] += code;
    store_s8(codes + v * LANES, code);
  }
  if (!in_halves) sums[0] += sums[1];
  const int32_t of_half[] = {sum(sums[0]), in_halves ? sum(sums[1]) : 0};
  EACH(half, 2) {
    group.of_least[half] = -group.scale * (float)of_half[half];
    group.start[half] = -centre * of_half[half];
  }
}

// The rows of a product by F, in memory of the calling thread that is valid until its next product.
template <class F, class Element> BlockRows quantize_blocks(Pool* pool, const GemmParams& p, int rows, int centre, bool in_halves) {
  const int groups = p.inputs / ROW_GROUP;
  const size_t stride = (size_t)p.inputs * CODE_BYTES<F> + 64;  // rows start in different sets of a cache
  char* const codes = (char*)row_arena().reserve(rows * (stride + groups * sizeof(RowGroup)));
  auto* const of_groups = (RowGroup*)(codes + rows * stride);
  const int grain = std::max(ceil_div(FEWEST_ROW_INPUTS, p.inputs), rows / (4 * pool->size()));
  pool->run(rows, grain, [&](int begin, int end) {
    for (int m = begin; m < end; m++) {
      const Element* x = (const Element*)p.x + m * p.x_stride;
      char* to = codes + m * stride;
      RowGroup* of = of_groups + (int64_t)m * groups;
      for (int g = 0; g < groups; g++, x += ROW_GROUP, of++, to += ROW_GROUP * CODE_BYTES<F>) {
        if constexpr (CODE_BYTES<F> == 1) quantize_group(x, (int8_t*)to, *of, centre, in_halves);
        else {
          int8_t group[ROW_GROUP];
          quantize_group(x, group, *of, centre, in_halves);
          EACH(half, 2) F::widen_sixteen((int16_t*)to + half * 16, group + half * 16);
        }
      }
    }
  });
  return {codes, of_groups, stride, groups};
}
