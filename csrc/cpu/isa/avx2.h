// AVX2 with FMA and F16C: x86 since 2013 (Haswell) and 2015 (Excavator). Vocabulary: isa.h.
#pragma once
#include <bit>
#include <immintrin.h>

constexpr const char* ISA_NAME = "avx2";
constexpr int LANES = 8;
typedef float F32 __attribute__((vector_size(32)));
typedef int32_t I32 __attribute__((vector_size(32)));

// At least eight accumulators: enough chains to hide the latency of FMA. Eight leave registers for weights and a row that
// are split in two; twelve only for unsplit ones.
constexpr int REGISTERS = 16;
constexpr int MAX_SPLIT_ROWS = 4;
constexpr int MAX_ROWS = 6;
constexpr bool WIDENS_BF16 = true;
constexpr int strip_vectors(int rows) { return rows == 1 ? 8 : rows == 2 ? 4 : 2; }

inline void opaque(F32& x) { asm("" : "+x"(x)); }
inline void opaque(I32& x) { asm("" : "+x"(x)); }

inline F32 splat(float x) { return _mm256_set1_ps(x); }
inline I32 splat(int32_t x) { return (I32)_mm256_set1_epi32(x); }
inline __m256i first(int n) { return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)); }

inline F32 load(const float* p) { return _mm256_loadu_ps(p); }
inline F32 load_n(const float* p, int n) { return _mm256_maskload_ps(p, first(n)); }
inline void store(float* p, F32 x) { _mm256_storeu_ps(p, x); }
inline void store_n(float* p, F32 x, int n) { _mm256_maskstore_ps(p, first(n), x); }
inline I32 load_words(const void* p) { return (I32)_mm256_loadu_si256((const __m256i*)p); }
inline I32 load_words_n(const void* p, int n) { return (I32)_mm256_maskload_epi32((const int*)p, first(n)); }
inline void store_words(void* p, I32 x) { _mm256_storeu_si256((__m256i*)p, (__m256i)x); }

inline F32 from_bf16(__m128i x) { return (F32)_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16); }
inline __m128i to_bf16(F32 x) {  // as bf16_bits, in fewer instructions
  F32 one = splat(1.0f);
  opaque(one);  // this product, which the compiler would remove, turns denormals into zeros
  const __m256i bits = (__m256i)(x * one);
  const __m256i is_odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32((__m256i)((I32)bits + (I32)is_odd + 0x7fff), 16);
  const __m256i nan = _mm256_and_si256((__m256i)_mm256_cmp_ps(x, x, _CMP_UNORD_Q), _mm256_set1_epi32(0x7fc0));
  const __m256i whole = _mm256_or_si256(rounded, nan);
  return _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(whole, whole), 0xd8));
}
inline F32 load_bf16(const uint16_t* p) { return from_bf16(_mm_loadu_si128((const __m128i*)p)); }
inline void store_bf16(uint16_t* p, F32 x) { _mm_storeu_si128((__m128i*)p, to_bf16(x)); }
inline F32 load_bf16_n(const uint16_t* p, int n) {
  uint16_t whole[LANES] = {};
  std::memcpy(whole, p, 2 * n);
  return load_bf16(whole);
}
inline void store_bf16_n(uint16_t* p, F32 x, int n) {
  uint16_t whole[LANES];
  store_bf16(whole, x);
  std::memcpy(p, whole, 2 * n);
}
typedef __m128i F16;
inline F32 from_fp16(F16 x) { return _mm256_cvtph_ps(x); }
inline F16 to_fp16(F32 x) { return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT); }
inline F32 load_fp16(const void* p) { return from_fp16(_mm_loadu_si128((const __m128i*)p)); }
inline void store_halves(void* p, F16 x) { _mm_storeu_si128((__m128i*)p, x); }
inline void store_fp16(void* p, F32 x) { store_halves(p, to_fp16(x)); }
inline F32 load_fp16_n(const void* p, int n) {
  uint16_t whole[LANES] = {};
  std::memcpy(whole, p, 2 * n);
  return load_fp16(whole);
}
inline void store_fp16_n(void* p, F32 x, int n) {
  uint16_t whole[LANES];
  store_fp16(whole, x);
  std::memcpy(p, whole, 2 * n);
}
inline __m256i halves_apart(I32 words) {  // the even ones, then the odd ones
  const __m256i order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
  return _mm256_permute4x64_epi64(_mm256_shuffle_epi8((__m256i)words, order), 0xd8);
}
inline F16 even_halves(I32 words) { return _mm256_castsi256_si128(halves_apart(words)); }
inline F16 odd_halves(I32 words) { return _mm256_extracti128_si256(halves_apart(words), 1); }
inline F32 load_u8(const void* p) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p))); }
inline F32 load_s8(const void* p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p))); }
inline void store_s8(int8_t* p, I32 x) {
  const __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128((__m256i)x), _mm256_extracti128_si256((__m256i)x, 1));
  _mm_storel_epi64((__m128i*)p, _mm_packs_epi16(halves, halves));
}

inline F32 fma(F32 a, F32 b, F32 c) { return _mm256_fmadd_ps(a, b, c); }
inline F32 max(F32 a, F32 b) { return _mm256_max_ps(a, b); }
inline F32 min(F32 a, F32 b) { return _mm256_min_ps(a, b); }
inline F32 round(F32 x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline I32 to_int(F32 x) { return (I32)_mm256_cvtps_epi32(x); }
inline F32 to_float(I32 x) { return _mm256_cvtepi32_ps((__m256i)x); }
inline F32 scaled(F32 x, F32 whole) { return x * (F32)power_of_two(to_int(max(splat(-127.0f), whole))); }
inline float sum(F32 x) {
  const float fours[4] = {x[0] + x[4], x[1] + x[5], x[2] + x[6], x[3] + x[7]};
  return (fours[0] + fours[2]) + (fours[1] + fours[3]);
}
inline int32_t sum(I32 x) { return x[0] + x[1] + x[2] + x[3] + x[4] + x[5] + x[6] + x[7]; }
inline float highest(F32 x) {
  float top = x[0];
  EACH(i, LANES) top = x[i] > top ? x[i] : top;
  return top;
}

inline I32 repeat_four(const void* p) {
  return (I32)_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)p));
}
inline I32 look_up(const uint8_t (&table)[16], I32 bytes) {
  return (I32)_mm256_shuffle_epi8((__m256i)repeat_four(table), (__m256i)bytes);
}
inline void eights(const char* const (&at)[LANES / 4], size_t offset, I32 (&x)[2]) {
  const __m256i a = (__m256i)load_words(at[0] + offset), b = (__m256i)load_words(at[1] + offset);
  x[0] = (I32)_mm256_permute2x128_si256(a, b, 0x20), x[1] = (I32)_mm256_permute2x128_si256(a, b, 0x31);
}
inline void interleave(I32 a, I32 b, I32& low, I32& high) {
  const __m256i even = _mm256_unpacklo_epi16((__m256i)a, (__m256i)b);
  const __m256i odd = _mm256_unpackhi_epi16((__m256i)a, (__m256i)b);
  low = (I32)_mm256_permute2x128_si256(even, odd, 0x20), high = (I32)_mm256_permute2x128_si256(even, odd, 0x31);
}

inline I32 repeat_word(const void* p) { return splat(word_at(p)); }
// Inline assembly, because with intrinsics gcc 12 leaves the sum in a factor's register, and runs out of registers.
inline F32 add_product(F32 sum, F32 a, F32 b) {
  asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
  return sum;
}
inline F32 add_product_bf16(F32 sum, F32 a, F32 b) { return add_product(sum, a, b); }
inline I32 add_pairs(I32 sum, I32 a, I32 b) {  // both products of 16-bit halves; together, or gcc 12 moves the first ones ahead
  I32 products;
  asm("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(sum), "=&x"(products) : "x"(a), "x"(b));
  return sum;
}

#include "isa/words.h"

using Bf16 = SplitBf16;
// Nibbles as bfloat16 by tables of both bytes, which takes half as many instructions as joining two that were widened.
struct CodeBytes {
  I32 low, high;
  template <class Value> explicit CodeBytes(Value value_of) {
    uint8_t lows[16], highs[16];
    EACH(code, 16) {
      const uint32_t bits = std::bit_cast<uint32_t>((float)value_of(code));
      lows[code] = bits >> 16, highs[code] = bits >> 24;
    }
    low = repeat_four(lows), high = repeat_four(highs);
  }
  I32 whole_word(I32 packed, int j) const {  // nibbles 0 and 1 of each half are in its low byte, 2 and 3 in its high one
    const __m256i codes = (__m256i)((j % 2 ? packed >> 4 : packed) & 0x0f0f0f0f);
    const __m256i lows = _mm256_shuffle_epi8((__m256i)low, codes), highs = _mm256_shuffle_epi8((__m256i)high, codes);
    if (j < 2) return (I32)_mm256_or_si256(_mm256_and_si256(lows, _mm256_set1_epi16(0xff)), _mm256_slli_epi16(highs, 8));
    return (I32)_mm256_or_si256(_mm256_srli_epi16(lows, 8), _mm256_andnot_si256(_mm256_set1_epi16(0xff), highs));
  }
  Halves word(I32 packed, int j) const { return SplitBf16::split(whole_word(packed, j)); }
};
struct Int4Codes : WidenedCodes, CodeBytes {
  using WidenedCodes::word;  // in registers, where this takes less time than tables
  explicit Int4Codes(int zero) : WidenedCodes(zero), CodeBytes([zero](int code) { return code - zero; }) {}
};
using FloatCodes = WidenedCodes;
struct Int8 {  // four unsigned weights (value + 128) times four signed activations; in 16 bits, since vpmaddubsw saturates
  using Acc = I32;
  static constexpr int32_t OFFSET = 128;
  using Weights = Halves;
  using Row = Halves;
  static Weights weights(I32 bytes) {
    const __m256i w = (__m256i)bytes;
    return {(I32)_mm256_and_si256(w, _mm256_set1_epi16(0xff)), (I32)_mm256_srli_epi16(w, 8)};
  }
  static Weights weights(const void* p) { return weights(load_words(p)); }
  static Row row(const void* p) {
    const __m256i x = _mm256_set1_epi32(word_at(p));
    return {(I32)_mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8), (I32)_mm256_srai_epi16(x, 8)};
  }
  static Acc dot(Acc acc, Weights w, Row x) {
    return add_pairs(add_pairs(acc, w.even, x.even), w.odd, x.odd);
  }
};
struct WideInt8 {  // the same in halves: rows have for each word inputs 0 and 2, then 1 and 3, in 16 bits
  using Acc = I32;
  using Weights = I32;
  using Row = I32;
  static I32 half(I32 words, bool odd) {
    return (I32)(odd ? _mm256_srli_epi16((__m256i)words, 8) : _mm256_and_si256((__m256i)words, _mm256_set1_epi16(0xff)));
  }
  static Row row(const void* p) { return repeat_word(p); }
  static Acc dot(Acc acc, Weights w, Row x) { return add_pairs(acc, w, x); }
  static void widen_sixteen(int16_t* row, const int8_t* codes) {
    const __m128i order = _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
    const __m128i halves = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i*)codes), order);
    _mm256_storeu_si256((__m256i*)row, _mm256_cvtepi8_epi16(halves));
  }
};
template <int MOST> struct SmallCodes {  // four unsigned weights up to MOST times four signed activations, in sums of 16 bits
  using Acc = I32;
  using Weights = I32;
  using Row = I32;
  static constexpr int WORDS = 32767 / (2 * 127 * MOST);  // that a sum has room for
  static constexpr int MOST_ROWS = WORDS < 8 ? 3 : MAX_ROWS;  // the sums of a group's other words need registers, too
  static Row row(const void* p) { return repeat_word(p); }
  static Acc dot(Acc sum, Weights w, Row x) {  // together, as in add_pairs
    I32 products;
    asm("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+x"(sum), "=&x"(products) : "x"(w), "x"(x));
    return sum;
  }
  static I32 whole(Acc sum) { return (I32)_mm256_madd_epi16((__m256i)sum, _mm256_set1_epi16(1)); }
};
