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
  int32_t bits = 0;
  EACH(lane, LANES) bits = top[lane] > bits ? top[lane] : bits;
  float peak;
  std::memcpy(&peak, &bits, sizeof peak);
  group.scale = peak < __builtin_inff() ? peak / 127.0f : __builtin_nanf("");
  const bool has_codes = group.scale > 0.0f;  // without them all are 0
  const F32 inverse = splat(127.0f / peak);
  I32 sums[2] = {splat(0), splat(0)};
  EACH(v, VECTORS) {
    const I32 code = has_codes ? to_int(value[v] * inverse) : splat(0);
    sums[v / HALF] += code;
    store_s8(codes + v * LANES, code);
  }
  const int32_t second = sum(sums[1]), first = sum(sums[0]) + (in_halves ? 0 : second), of_half[] = {first, second};
  EACH(half, 2) {
    group.of_least[half] = -group.scale * (float)of_half[half];
    group.start[half] = -centre * of_half[half];
  }
}

template <class F> inline void put_codes(char* to, const int8_t* codes) {
  if constexpr (CODE_BYTES<F> == 1) std::memcpy(to, codes, ROW_GROUP);
  else EACH(half, 2) F::widen_sixteen((int16_t*)to + half * 16, codes + half * 16);
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
      for (int g = 0; g < groups; g++) {
        int8_t group[ROW_GROUP];
        quantize_group(x + g * ROW_GROUP, group, of_groups[(int64_t)m * groups + g], centre, in_halves);
        put_codes<F>(codes + m * stride + g * ROW_GROUP * CODE_BYTES<F>, group);
      }
    }
  });
  return {codes, of_groups, stride, groups};
}
