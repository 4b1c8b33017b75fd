// e4m3 codes to words of bfloat16 by table look-ups, 32 codes at a time: with AVX2, and with AVX512 without VBMI.
//
// A magnitude is f * 2^-9 * 2^(e - 1) with f = 8 to 15, or with e = 0 f * 2^-9 with f = 0 to 7. A table has
// bfloat16(f * 2^-9 * scale), less 1 in the exponent if f is above 7, so that e has only to be added above the fraction.
#pragma once
#include "fp8/fp8.h"

#if defined(__AVX2__)
#include <immintrin.h>

typedef float F256 __attribute__((vector_size(32)));
typedef int32_t I256 __attribute__((vector_size(32)));
constexpr int FRACTIONS = 16, LANE_WORDS = 4;

// Rows of four words of each lane become columns.
inline void transpose(__m256i (&rows)[LANE_WORDS]) {
  const __m256i a = _mm256_unpacklo_epi32(rows[0], rows[1]), b = _mm256_unpackhi_epi32(rows[0], rows[1]);
  const __m256i c = _mm256_unpacklo_epi32(rows[2], rows[3]), d = _mm256_unpackhi_epi32(rows[2], rows[3]);
  rows[0] = _mm256_unpacklo_epi64(a, c), rows[1] = _mm256_unpackhi_epi64(a, c);
  rows[2] = _mm256_unpacklo_epi64(b, d), rows[3] = _mm256_unpackhi_epi64(b, d);
}

// The tables of one output in each lane.
struct ByteTables {
  __m256i low, high;  // bytes of the halves by fraction
  __m256i exponents;  // the bits of a code that are added: none if the scale is 0

  // `first` and `last`: the words of the first and the last eight codes of each lane. The codes' signs are inverted.
  void look_up(__m256i codes, __m256i& first, __m256i& last) const {
    const __m256i raised = _mm256_and_si256(codes, exponents), zero = _mm256_setzero_si256();
    const __m256i at = _mm256_or_si256(_mm256_and_si256(codes, _mm256_set1_epi8(7)), _mm256_min_epu8(raised, _mm256_set1_epi8(8)));
    const __m256i lows = _mm256_shuffle_epi8(low, at), sign = _mm256_andnot_si256(codes, _mm256_set1_epi8((char)0x80));
    const __m256i highs = _mm256_xor_si256(_mm256_shuffle_epi8(high, at), sign);
    first = _mm256_add_epi16(_mm256_unpacklo_epi8(lows, highs), _mm256_slli_epi16(_mm256_unpacklo_epi8(raised, zero), 4));
    last = _mm256_add_epi16(_mm256_unpackhi_epi8(lows, highs), _mm256_slli_epi16(_mm256_unpackhi_epi8(raised, zero), 4));
  }
};

// The tables of eight outputs: 0 and 4, 1 and 5, 2 and 6, 3 and 7.
inline void make_tables(ByteTables (&tables)[LANE_WORDS], F256 scale) {
  I256 halves[FRACTIONS];
  const I256 is_scaled = scale != (F256){}, exponent = is_scaled & (1 << 7);
  for (int f = 8; f < FRACTIONS; f++) {
    const I256 bits = (I256)(scale * (f * 0x1p-9f));
    halves[f] = ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) & 0xffff;
  }
  halves[0] = ((I256)scale >> 16) & 0x8000;
  halves[1] = halves[8] - exponent - exponent - exponent;
  for (int f = 2; f < 4; f++) halves[f] = halves[f * 4] - exponent - exponent;
  for (int f = 4; f < 8; f++) halves[f] = halves[f * 2] - exponent;
  for (int f = 8; f < FRACTIONS; f++) halves[f] -= exponent;
  __m256i lows[LANE_WORDS], highs[LANE_WORDS];
  for (int i = 0; i < LANE_WORDS; i++) {
    const I256 even = halves[4 * i] | (halves[4 * i + 2] << 16), odd = halves[4 * i + 1] | (halves[4 * i + 3] << 16);
    lows[i] = (__m256i)((even & 0x00ff00ff) | ((odd & 0x00ff00ff) << 8));
    highs[i] = (__m256i)(((even >> 8) & 0x00ff00ff) | (odd & (int32_t)0xff00ff00));
  }
  transpose(lows), transpose(highs);
  const __m256i exponents = (__m256i)(is_scaled & 0x78787878);
  tables[0] = {lows[0], highs[0], _mm256_shuffle_epi32(exponents, 0x00)};
  tables[1] = {lows[1], highs[1], _mm256_shuffle_epi32(exponents, 0x55)};
  tables[2] = {lows[2], highs[2], _mm256_shuffle_epi32(exponents, 0xaa)};
  tables[3] = {lows[3], highs[3], _mm256_shuffle_epi32(exponents, 0xff)};
}

#endif
