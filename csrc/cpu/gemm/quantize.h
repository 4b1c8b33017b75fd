// Symmetric quantization of one row of activations to int8.
#pragma once
#include "elements.h"

// codes[0..count) = x / scale, to nearest even, then zeros up to a multiple of LANES; `sum_of_codes` is the codes' sum.
// The highest magnitude is found among the bits of the floats, where NaN is above infinity: the scale of a row that
// contains a NaN is NaN, and its codes are meaningless.
template <class Element>
inline void quantize_row(const Element* x, int count, int8_t* codes, float& scale, int32_t& sum_of_codes) {
  I32 top = splat(0);
  for (int i = 0; i < count; i += LANES) {
    const I32 magnitude = (I32)abs(get(x + i, count - i));
    top = magnitude > top ? magnitude : top;
  }
  int32_t bits = 0;
  EACH(lane, LANES) bits = top[lane] > bits ? top[lane] : bits;
  float peak;
  std::memcpy(&peak, &bits, sizeof peak);
  scale = peak / 127.0f;
  const F32 inverse = splat(peak > 0.0f ? 127.0f / peak : 0.0f);
  I32 total = splat(0);
  for (int i = 0; i < count; i += LANES) {
    const I32 code = to_int(get(x + i, count - i) * inverse);
    total += code;
    store_s8(codes + i, code);
  }
  sum_of_codes = scale < __builtin_inff() ? sum(total) : 0;
}
