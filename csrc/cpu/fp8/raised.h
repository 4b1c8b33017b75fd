// Values of e4m3 codes with AVX2, 32 codes at a time: magnitudes as floats, times scales, rounded to bfloat16.
//
// A code's magnitude gets an exponent of 5 bits above its fraction, RAISED more than its own, so that also m * 2^-9 has one;
// 0 stays 0. vpmaddubsw moves such a byte to the bits of a float, which is then the magnitude / TO_VALUE.
//
// A float is rounded to bfloat16 by adding 2^16 times its power of two, and subtracting it again: to nearest even, in three
// operations instead of five on integers. It would lose the sign of -0, so signs are applied afterwards.
#pragma once
#include "fp8/fp8.h"

#if defined(__AVX2__) && !defined(__AVX512F__)

constexpr int CODES = 4;  // in a word
constexpr int RAISED = 16;  // the exponents of -2 to 15 then fit into 5 bits
constexpr float TO_VALUE = 0x1p104f;  // 2^(127 - 7 - RAISED); finite times any scale of fp8_product.py

// A vector of words of four codes, whose signs are not read.
class RaisedCodes {
 public:
  explicit RaisedCodes(I32 quads) {
    const __m256i magnitude = _mm256_and_si256((__m256i)quads, _mm256_set1_epi8(0x7f));
    const __m256i place = _mm256_min_epu8(magnitude, _mm256_set1_epi8(8));
    bytes_ = _mm256_add_epi8(magnitude, _mm256_shuffle_epi8(differences(), place));
  }

  // The magnitudes of each of the four inputs times `factor`, rounded to the nearest bfloat16, ties to even. The chains of
  // operations are interleaved, because they are long for what a core looks ahead if it runs two threads.
  void values(F32 factor, F32 (&out)[CODES]) const {
    const __m256i high[] = {_mm256_slli_epi32(bytes_, 16), bytes_};
    F32 powers[CODES];
    const F32 shift = splat(0x1p16f);
    EACH(j, CODES) out[j] = (F32)_mm256_maddubs_epi16(high[j / 2], _mm256_set1_epi32(j % 2 ? 16 << 24 : 16 << 16)) * factor;
    EACH(j, CODES) powers[j] = (F32)((I32)out[j] & 0x7f800000);
    EACH(j, CODES) out[j] = fma(powers[j], shift, out[j]);
    EACH(j, CODES) out[j] = _mm256_fnmadd_ps(powers[j], shift, out[j]);
  }

 private:
  // From a magnitude to its byte: for 0, for m = 1 to 7, which get a fraction, and for all others.
  static __m256i differences() {
    constexpr auto from = [](int m, int exponent, int fraction) { return (char)((exponent + RAISED) * 8 + fraction - m); };
    const __m128i one = _mm_setr_epi8(0, from(1, -2, 0), from(2, -1, 0), from(3, -1, 4), from(4, 0, 0), from(5, 0, 2), from(6, 0, 4),
                                      from(7, 0, 6), from(0, 0, 0), 0, 0, 0, 0, 0, 0, 0);
    return _mm256_broadcastsi128_si256(one);
  }

  __m256i bytes_;
};

// Scales as factors of RaisedCodes, and, for those that are negative, the bits of the signs of four codes.
struct ScaleParts {
  F32 factor;
  I32 flip;
  explicit ScaleParts(F32 scales)
      : factor((F32)((I32)scales & 0x7fffffff) * TO_VALUE), flip(((I32)scales >> 31) & (int32_t)0x80808080) {}
};

#endif
