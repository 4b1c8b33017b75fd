// The values of e4m3 codes, times scales, as words of two bfloat16: on any instruction set, and by a table with VBMI.
//
// A code's bits are those of a float if its exponent is moved; of the codes without an exponent, m * 2^-9, this gives
// f = (1 + m / 8) * 2^-7 instead, and 2 * f - 2^-6 is their value. For all other codes this is not less than f, so the value
// is the minimum of both.
#pragma once
#include "fp8/fp8.h"

// Magnitudes of codes that are at bits 20 to 26.
inline F32 magnitudes(I32 codes) {
  const F32 moved = (F32)(codes + (120 << 23));
  return min(moved, (moved + moved) - splat(0x1p-6f));
}

// The values of input j of quads, whose signs are inverted.
inline F32 values(I32 quads, int j) {
  const I32 at = j < 3 ? quads << (20 - 8 * j) : quads >> 4;
  const I32 sign = (~quads << (24 - 8 * j)) & (int32_t)0x80000000;
  return (F32)((I32)magnitudes(at & 0x07f00000) | sign);
}

// Two inputs, rounded, as a word: neither NaN nor denormal.
#if defined(__AVX512BF16__)
struct EveryOther {
  alignas(64) uint16_t half[2 * LANES];
};
constexpr EveryOther EVERY_OTHER = [] {
  EveryOther order{};
  for (int i = 0; i < 2 * LANES; i++) order.half[i] = (uint16_t)(i / 2 + i % 2 * LANES);
  return order;
}();
inline I32 rounded_word(F32 even, F32 odd) {
  const I32 apart = (I32)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);
  return (I32)_mm512_permutexvar_epi16(_mm512_load_si512(EVERY_OTHER.half), (__m512i)apart);
}
#else
inline I32 rounded_bits(F32 x) { return (I32)x + 0x7fff + (((I32)x >> 16) & 1); }
inline I32 rounded_word(F32 even, F32 odd) {
  return ((rounded_bits(even) >> 16) & 0xffff) | (rounded_bits(odd) & (int32_t)0xffff0000);
}
#endif

inline I32 scaled_word(I32 word, F32 scale) {
  return rounded_word((F32)even_half(word) * scale, (F32)odd_half(word) * scale);
}

// Prefetches a word of codes of all outputs, `ahead` bytes after `codes`.
template <int LEVEL> inline void fetch_codes(const char* codes, int ahead) {
  constexpr int LINE = 64;
  EACH(line, 4) prefetch<LEVEL>(codes + ahead + line * LINE);
}

// Whether a panel's outputs have the same scale.
inline bool is_one_scale(const float* scales) {
  const I32 first = splat(word_at(scales));
  I32 differ = splat(0);
  EACH(v, PANEL_VECTORS) differ |= load_words(scales + v * LANES) ^ first;
  int64_t halves[sizeof differ / sizeof(int64_t)], any = 0;
  std::memcpy(halves, &differ, sizeof differ);
  for (const int64_t half : halves) any |= half;
  return any == 0;
}

#if defined(__AVX512F__)

inline bool has_vbmi() { return __builtin_cpu_supports("avx512vbmi"); }
#define WITH_VBMI gnu::target("avx512vbmi")

struct BytePlaces {  // in two registers
  alignas(64) uint8_t even[64], odd[64], lower[64], upper[64];
};
constexpr BytePlaces BYTE_PLACES = [] {
  BytePlaces at{};
  for (int i = 0; i < 64; i++) {
    at.even[i] = (uint8_t)(2 * i), at.odd[i] = (uint8_t)(2 * i + 1);
    at.lower[i] = (uint8_t)(i / 4 * 4 + i % 4 / 2 + i % 2 * 64);  // of a quad's inputs 0 and 1, low and high bytes
    at.upper[i] = (uint8_t)(at.lower[i] + 2);                     // inputs 2 and 3
  }
  return at;
}();

// The low and the high bytes of 128 magnitudes times a scale, in bfloat16. The bit of the sign is not read of an index.
class ScaledMagnitudes {
 public:
  [[WITH_VBMI, gnu::always_inline]] inline explicit ScaledMagnitudes(float scale) {
    const I32 lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    __m512i halves[4];
    EACH(i, 4) {
      const F32 low = magnitudes((lanes + i * 2 * LANES) << 20) * scale;
      const F32 high = magnitudes((lanes + (i * 2 + 1) * LANES) << 20) * scale;
      halves[i] = _mm512_inserti64x4(_mm512_castsi256_si512(to_bf16(low)), to_bf16(high), 1);
    }
    const __m512i even = _mm512_load_si512(BYTE_PLACES.even), odd = _mm512_load_si512(BYTE_PLACES.odd);
    EACH(i, 2) {
      low_[i] = _mm512_permutex2var_epi8(halves[2 * i], even, halves[2 * i + 1]);
      high_[i] = _mm512_permutex2var_epi8(halves[2 * i], odd, halves[2 * i + 1]);
    }
    lower_ = _mm512_load_si512(BYTE_PLACES.lower), upper_ = _mm512_load_si512(BYTE_PLACES.upper);
    sign_ = _mm512_set1_epi8((char)0x80);
  }

  [[WITH_VBMI, gnu::always_inline]] inline void words(I32 quads, I32 (&out)[QUAD_WORDS]) const {
    const __m512i at = (__m512i)quads;
    const __m512i low = _mm512_permutex2var_epi8(low_[0], at, low_[1]), size = _mm512_permutex2var_epi8(high_[0], at, high_[1]);
    const __m512i high = _mm512_ternarylogic_epi32(size, at, sign_, 0xd2);  // size ^ (~at & sign)
    out[0] = (I32)_mm512_permutex2var_epi8(low, lower_, high), out[1] = (I32)_mm512_permutex2var_epi8(low, upper_, high);
  }

 private:
  __m512i low_[2], high_[2], lower_, upper_, sign_;
};

#endif
