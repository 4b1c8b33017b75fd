// float16 in tile order: a number is the sum of two bfloat16, of which `high` is the nearest one, the larger of two that are as
// near, and `low` the exact rest; of an infinity or NaN that is NaN. Tiles multiply bfloat16 exactly, so a product of float16
// is some products of parts. No part is denormal.
#pragma once
#include "gemm/tile_product.h"

struct Split {
  I32 high, low;  // the bits of floats
};

inline Split split(F32 x) {
  const I32 high = ((I32)x + 0x8000) & (int32_t)0xffff0000;
  return {high, (I32)(x - (F32)high)};
}

// Of each piece of a part of a row of float16 the high parts, then the low ones.
struct SplitPieces {
  int inputs;  // of a part
  int count() const { return 2 * ceil_div(inputs, 2 * PIECE_WORDS); }
  void copy(char* to, const char* part, int i) const {
    const int first = i / 2 * 2 * PIECE_WORDS;
    for (int k = 0; k < 2 * PIECE_WORDS; k += LANES) {
      const Split x = split(get((const Float16*)part + first + k, std::clamp(inputs - first - k, 0, LANES)));
      put((Bfloat16*)to + k, (F32)(i % 2 ? x.low : x.high), LANES);
    }
  }
};
