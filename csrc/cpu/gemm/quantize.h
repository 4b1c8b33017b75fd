// Symmetric quantization of one row of activations to int8.
#pragma once
#include "elements.h"

// codes[0..count) = x / scale, to nearest even, then zeros up to a multiple of LANES; `sum_of_codes` is the codes' sum.
// The highest magnitude is found among the bits of the floats, where NaN is above infinity: the scale of a row that
// contains either is NaN. Then, and with a scale of 0, below the normal numbers, all codes are 0.
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
  scale = peak < __builtin_inff() ? peak / 127.0f : __builtin_nanf("");
  const bool has_codes = scale > 0.0f;
  const F32 inverse = splat(127.0f / peak);
  I32 total = splat(0);
  for (int i = 0; i < count; i += LANES) {
    const I32 code = has_codes ? to_int(get(x + i, count - i) * inverse) : splat(0);
    total += code;
    store_s8(codes + i, code);
  }
  sum_of_codes = sum(total);
}
