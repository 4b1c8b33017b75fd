// AVX512 with F, BW, VL, DQ and VNNI: Ice Lake, Zen 4 and later. Vocabulary: isa.h.
//
// Three libraries are built from this file, with the same bits. Those with BF16 round to bfloat16 by its instruction. avx512
// also multiplies by VDPBF16PS; the others by fp32 FMAs on words split in two as in isa/avx2.h. If a machine can run both
// avx512 and avx512fma, the loader measures which is faster: Zen 4 computes twice as many products with VDPBF16PS as with FMA,
// an Emerald Rapids half as many.
#pragma once
#include <immintrin.h>

#if defined(__AMX_BF16__) && defined(__AMX_INT8__)
constexpr const char* ISA_NAME = "amx";  // the same vectors, and the tiles of tiles/amx.h
#elif defined(__AVX512BF16__)
constexpr const char* ISA_NAME = "avx512";
#define MULTIPLIES_BF16
#else
constexpr const char* ISA_NAME = "avx512fma";
#endif
constexpr int LANES = 16;
typedef float F32 __attribute__((vector_size(64)));
typedef int32_t I32 __attribute__((vector_size(64)));

// Registers: 6 rows x 4 vectors of accumulators, 4 vectors of weights and a broadcast are 29 of 32. With 5 rows (20), weights
// split in two (8), a row split in two (2) and a mask, 31.
constexpr int REGISTERS = 32;
constexpr int MAX_SPLIT_ROWS = 5;
constexpr int MAX_ROWS = 6;
#ifdef MULTIPLIES_BF16
constexpr bool WIDENS_BF16 = false;
#else
constexpr bool WIDENS_BF16 = true;
#endif
constexpr int strip_vectors(int) { return 4; }

inline void opaque(F32& x) { asm("" : "+v"(x)); }
inline void opaque(I32& x) { asm("" : "+v"(x)); }

inline F32 splat(float x) { return _mm512_set1_ps(x); }
inline I32 splat(int32_t x) { return (I32)_mm512_set1_epi32(x); }
inline __mmask16 first(int n) { return (__mmask16)((1u << n) - 1); }

inline F32 load(const float* p) { return _mm512_loadu_ps(p); }
inline F32 load_n(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
inline void store(float* p, F32 x) { _mm512_storeu_ps(p, x); }
inline void store_n(float* p, F32 x, int n) { _mm512_mask_storeu_ps(p, first(n), x); }
inline I32 load_words(const void* p) { return (I32)_mm512_loadu_si512(p); }
inline I32 load_words_n(const void* p, int n) { return (I32)_mm512_maskz_loadu_epi32(first(n), p); }
inline void store_words(void* p, I32 x) { _mm512_storeu_si512(p, (__m512i)x); }

inline F32 from_bf16(__m256i x) { return (F32)_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16); }
#ifdef __AVX512BF16__
inline __m256i to_bf16(F32 x) { return (__m256i)_mm512_cvtneps_pbh(x); }
#else
inline __m256i to_bf16(F32 x) { return _mm512_cvtepi32_epi16((__m512i)bf16_bits(x)); }
#endif
inline F32 load_bf16(const uint16_t* p) { return from_bf16(_mm256_loadu_si256((const __m256i*)p)); }
inline F32 load_bf16_n(const uint16_t* p, int n) { return from_bf16(_mm256_maskz_loadu_epi16(first(n), p)); }
inline void store_bf16(uint16_t* p, F32 x) { _mm256_storeu_si256((__m256i*)p, to_bf16(x)); }
inline void store_bf16_n(uint16_t* p, F32 x, int n) { _mm256_mask_storeu_epi16(p, first(n), to_bf16(x)); }
typedef __m256i F16;
inline F32 from_fp16(F16 x) { return _mm512_cvtph_ps(x); }
inline F16 to_fp16(F32 x) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline F32 load_fp16(const void* p) { return from_fp16(_mm256_loadu_si256((const __m256i*)p)); }
inline F32 load_fp16_n(const void* p, int n) { return from_fp16(_mm256_maskz_loadu_epi16(first(n), p)); }
inline void store_halves(void* p, F16 x) { _mm256_storeu_si256((__m256i*)p, x); }
inline void store_fp16(void* p, F32 x) { store_halves(p, to_fp16(x)); }
inline void store_fp16_n(void* p, F32 x, int n) { _mm256_mask_storeu_epi16(p, first(n), to_fp16(x)); }
inline F16 even_halves(I32 words) { return _mm512_cvtepi32_epi16((__m512i)words); }
inline F16 odd_halves(I32 words) { return _mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)words, 16)); }
inline F32 load_u8(const void* p) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p))); }
inline F32 load_s8(const void* p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p))); }
inline void store_s8(int8_t* p, I32 x) { _mm_storeu_si128((__m128i*)p, _mm512_cvtsepi32_epi8((__m512i)x)); }

inline F32 fma(F32 a, F32 b, F32 c) { return _mm512_fmadd_ps(a, b, c); }
inline F32 max(F32 a, F32 b) { return _mm512_max_ps(a, b); }
inline F32 min(F32 a, F32 b) { return _mm512_min_ps(a, b); }
inline F32 round(F32 x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline I32 to_int(F32 x) { return (I32)_mm512_cvtps_epi32(x); }
inline F32 to_float(I32 x) { return _mm512_cvtepi32_ps((__m512i)x); }
#define OTHER_HALF(x) __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)
#define OTHER_QUARTER(x) __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11)
inline F32 scaled(F32 x, F32 whole) { return _mm512_scalef_ps(x, whole); }
inline float sum(F32 x) {
  x += OTHER_HALF(x);
  x += OTHER_QUARTER(x);
  return (x[0] + x[2]) + (x[1] + x[3]);
}
inline int32_t sum(I32 x) {
  x += OTHER_HALF(x);
  x += OTHER_QUARTER(x);
  return x[0] + x[1] + x[2] + x[3];
}
inline float highest(F32 x) {
  x = max(x, OTHER_HALF(x));
  x = max(x, OTHER_QUARTER(x));
  const float even = x[0] > x[2] ? x[0] : x[2], odd = x[1] > x[3] ? x[1] : x[3];
  return even > odd ? even : odd;
}
#undef OTHER_HALF
#undef OTHER_QUARTER

inline I32 repeat_four(const void* p) { return (I32)_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)p)); }
inline I32 look_up(const uint8_t (&table)[16], I32 bytes) {
  return (I32)_mm512_shuffle_epi8((__m512i)repeat_four(table), (__m512i)bytes);
}
inline void eights(const char* const (&at)[LANES / 4], size_t offset, I32 (&x)[2]) {
  const auto eight = [&](int i) { return _mm256_loadu_si256((const __m256i*)(at[i] + offset)); };
  const __m512i ab = _mm512_mask_broadcast_i64x4(_mm512_castsi256_si512(eight(0)), 0xf0, eight(1));
  const __m512i cd = _mm512_mask_broadcast_i64x4(_mm512_castsi256_si512(eight(2)), 0xf0, eight(3));
  x[0] = (I32)_mm512_shuffle_i32x4(ab, cd, 0x88), x[1] = (I32)_mm512_shuffle_i32x4(ab, cd, 0xdd);
}
struct Interleaving {  // orders that interleave 16-bit halves 0..31 with halves 32..63
  alignas(64) uint16_t low[2 * LANES], high[2 * LANES];
};
constexpr Interleaving INTERLEAVING = [] {
  Interleaving order{};
  for (int i = 0; i < 2 * LANES; i++) {
    order.low[i] = (uint16_t)(i / 2 + i % 2 * 2 * LANES);
    order.high[i] = (uint16_t)(order.low[i] + LANES);
  }
  return order;
}();
inline void interleave(I32 a, I32 b, I32& low, I32& high) {
  low = (I32)_mm512_permutex2var_epi16((__m512i)a, _mm512_load_si512(INTERLEAVING.low), (__m512i)b);
  high = (I32)_mm512_permutex2var_epi16((__m512i)a, _mm512_load_si512(INTERLEAVING.high), (__m512i)b);
}

inline I32 repeat_word(const void* p) { return splat(word_at(p)); }

// Inline assembly, because gcc 12 keeps the accumulators of intrinsics in memory.
inline F32 add_product(F32 sum, F32 a, F32 b) {
  asm("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
}
inline F32 add_product_bf16(F32 sum, F32 a, F32 b) { return add_product(sum, a, b); }

#include "isa/words.h"

#ifdef MULTIPLIES_BF16
struct TwoVectors {  // the order of Bf16::two_vectors
  alignas(64) uint16_t order[2 * LANES];
};
constexpr TwoVectors TWO_VECTORS = [] {
  TwoVectors two{};
  for (int i = 0; i < 2 * LANES; i++) two.order[i] = (uint16_t)(i / 2 + (i % 2 ? 0 : WIDE));
  return two;
}();
struct Bf16 : Words {  // two bfloat16; vdpbf16ps flushes denormals, whatever the control register says
  using Acc = F32;
  static Acc dot(Acc acc, Weights w, Row x) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(acc) : "v"(w), "v"(x));
    return acc;
  }
  static I32 two_vectors(const uint16_t* p) {
    return (I32)_mm512_permutexvar_epi16(_mm512_load_si512(TWO_VECTORS.order), _mm512_loadu_si512(p));
  }
};
#else
using Bf16 = SplitBf16;
#endif
#undef MULTIPLIES_BF16
struct Int8 : Words {  // four unsigned weights (value + 128) times four signed activations
  using Acc = I32;
  static constexpr int32_t OFFSET = 128;
  static Acc dot(Acc acc, Weights w, Row x) {
    asm("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(w), "v"(x));
    return acc;
  }
};

using WideInt8 = Int8;
template <int> using SmallCodes = Int8;

// A table of sixteen floats. Of an index the lowest four bits count, so a nibble needs no mask.
struct FloatCodes {
  F32 table;
  explicit FloatCodes(int zero) { for (int code = 0; code < LANES; code++) table[code] = (float)(code - zero); }
  I32 half(I32 packed, int j) const { return (I32)_mm512_permutexvar_ps((__m512i)(packed >> (4 * j)), table); }
};

// A table of sixteen values in bfloat16. Indices have five bits and the table is repeated, so a nibble needs no mask.
struct Int4Codes {
  __m512i table;
  explicit Int4Codes(int zero) {  // the code that stands for 0
    alignas(32) uint16_t values[16];
    for (int code = 0; code < 16; code++) {
      const float value = (float)(code - zero);
      std::memcpy(&values[code], (const char*)&value + 2, 2);
    }
    table = _mm512_broadcast_i64x4(_mm256_load_si256((const __m256i*)values));
  }
  I32 whole_word(I32 packed, int j) const {
    return (I32)_mm512_permutexvar_epi16(_mm512_srli_epi16((__m512i)packed, 4 * j), table);
  }
  Bf16::Weights word(I32 packed, int j) const { return Bf16::weights(whole_word(packed, j)); }
};
