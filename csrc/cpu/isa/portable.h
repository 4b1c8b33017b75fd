// GCC vector extensions of 128 bits only: for any processor, also x86 without AVX2. Vocabulary: isa.h.
#pragma once
#include <cmath>

constexpr const char* ISA_NAME = "portable";
constexpr int LANES = 4;
typedef float F32 __attribute__((vector_size(16)));
typedef int32_t I32 __attribute__((vector_size(16)));
typedef uint16_t U16x4 __attribute__((vector_size(8)));
typedef int8_t S8x4 __attribute__((vector_size(4)));
typedef uint8_t U8x4 __attribute__((vector_size(4)));

// Sixteen registers of four lanes: two rows of four accumulators, or one of eight.
constexpr int REGISTERS = 16;
constexpr int MAX_SPLIT_ROWS = 2;
constexpr int MAX_ROWS = 2;
constexpr bool WIDENS_BF16 = false;  // a fused product of bfloat16 is cheaper than one of floats
constexpr int strip_vectors(int rows) { return rows == 1 ? 8 : 4; }

#if defined(__SSE2__)
inline void opaque(F32& x) { asm("" : "+x"(x)); }
inline void opaque(I32& x) { asm("" : "+x"(x)); }
#elif defined(__aarch64__)
inline void opaque(F32& x) { asm("" : "+w"(x)); }
inline void opaque(I32& x) { asm("" : "+w"(x)); }
#else
inline void opaque(F32&) {}
inline void opaque(I32&) {}
#endif

inline F32 splat(float x) { return F32{x, x, x, x}; }
inline I32 splat(int32_t x) { return I32{x, x, x, x}; }

template <class Vector> inline Vector copied(const void* p, size_t bytes = sizeof(Vector)) {
  Vector x = {};
  std::memcpy(&x, p, bytes);
  return x;
}
inline F32 load(const float* p) { return copied<F32>(p); }
inline F32 load_n(const float* p, int n) { return copied<F32>(p, 4 * n); }
inline void store(float* p, F32 x) { std::memcpy(p, &x, sizeof x); }
inline void store_n(float* p, F32 x, int n) { std::memcpy(p, &x, 4 * n); }
inline I32 load_words(const void* p) { return copied<I32>(p); }
inline I32 load_words_n(const void* p, int n) { return copied<I32>(p, 4 * n); }
inline void store_words(void* p, I32 x) { std::memcpy(p, &x, sizeof x); }

inline F32 from_bf16(U16x4 x) { return (F32)(__builtin_convertvector(x, I32) << 16); }
inline U16x4 to_bf16(F32 x) { return __builtin_convertvector(bf16_bits(x), U16x4); }
inline F32 load_bf16(const uint16_t* p) { return from_bf16(copied<U16x4>(p)); }
inline F32 load_bf16_n(const uint16_t* p, int n) { return from_bf16(copied<U16x4>(p, 2 * n)); }
inline void store_bf16_n(uint16_t* p, F32 x, int n) {
  const U16x4 halves = to_bf16(x);
  std::memcpy(p, &halves, 2 * n);
}
inline void store_bf16(uint16_t* p, F32 x) { store_bf16_n(p, x, LANES); }
// Uses integers, or floats that are never denormals: the same bits as F16C, whatever the control register says.
typedef U16x4 F16;
inline F32 from_fp16(F16 x) {
  const I32 half = __builtin_convertvector(x, I32), magnitude = half & 0x7fff;
  const I32 normal = (magnitude << 13) + (112 << 23), special = (normal + (112 << 23)) | (magnitude > 0x7c00 ? splat(1 << 22) : splat(0));
  const I32 subnormal = (I32)(__builtin_convertvector(magnitude, F32) * 0x1p-24f);
  const I32 bits = magnitude < 0x400 ? subnormal : magnitude < 0x7c00 ? normal : special;
  return (F32)(bits | (half & 0x8000) << 16);
}
inline F16 to_fp16(F32 x) {
  const I32 magnitude = (I32)x & 0x7fffffff, finite = magnitude < 0x47800000 ? magnitude : splat(0x47800000);  // 2^16
  const I32 normal = (finite - (112 << 23) + 0xfff + ((finite >> 13) & 1)) >> 13;
  const I32 subnormal = (I32)((F32)magnitude + 0.5f) - 0x3f000000;  // the last bit of 0.5 is 2^-24, as that of a subnormal
  const I32 nan = ((magnitude >> 13) & 0x3ff) | 0x7e00;
  const I32 half = magnitude > 0x7f800000 ? nan : magnitude < 0x38800000 ? subnormal : normal;
  return __builtin_convertvector(half | (((I32)x >> 16) & 0x8000), U16x4);
}
inline F32 load_fp16(const void* p) { return from_fp16(copied<U16x4>(p)); }
inline F32 load_fp16_n(const void* p, int n) { return from_fp16(copied<U16x4>(p, 2 * n)); }
inline void store_fp16_n(void* p, F32 x, int n) {
  const F16 halves = to_fp16(x);
  std::memcpy(p, &halves, 2 * n);
}
inline void store_fp16(void* p, F32 x) { store_fp16_n(p, x, LANES); }
inline void store_halves(void* p, F16 x) { std::memcpy(p, &x, sizeof x); }
inline F16 even_halves(I32 words) { return __builtin_convertvector(words & 0xffff, U16x4); }
inline F16 odd_halves(I32 words) { return __builtin_convertvector((words >> 16) & 0xffff, U16x4); }
inline F32 load_u8(const void* p) { return __builtin_convertvector(copied<U8x4>(p), F32); }
inline F32 load_s8(const void* p) { return __builtin_convertvector(copied<S8x4>(p), F32); }
inline void store_s8(int8_t* p, I32 x) {
  const I32 low = x < -128 ? splat(-128) : x;
  const S8x4 bytes = __builtin_convertvector(low > 127 ? splat(127) : low, S8x4);
  std::memcpy(p, &bytes, sizeof bytes);
}

#ifdef __FP_FAST_FMAF
inline F32 fma(F32 a, F32 b, F32 c) {
  return F32{std::fma(a[0], b[0], c[0]), std::fma(a[1], b[1], c[1]), std::fma(a[2], b[2], c[2]), std::fma(a[3], b[3], c[3])};
}
inline F32 add_product(F32 sum, F32 a, F32 b) { return fma(a, b, sum); }
inline F32 add_product_bf16(F32 sum, F32 a, F32 b) { return fma(a, b, sum); }
#else
#include "isa/fused.h"
// Thirty instructions: outside of the loops of products they are called, since a polynomial has six of them.
[[gnu::noinline, maybe_unused]] static F32 fma(F32 a, F32 b, F32 c) { return fused(a, b, c); }
inline F32 add_product(F32 sum, F32 a, F32 b) { return fused(a, b, sum); }
inline F32 add_product_bf16(F32 sum, F32 a, F32 b) { return fused_bf16(a, b, sum); }
#endif
inline F32 max(F32 a, F32 b) { return a > b ? a : b; }
inline F32 min(F32 a, F32 b) { return a < b ? a : b; }
inline F32 round(F32 x) {  // adding 2^23 leaves no fraction bits; greater numbers have none
  const F32 magic = splat(8388608.0f), magnitude = (F32)((I32)x & splat(0x7fffffff));
  const I32 whole = (I32)((magnitude + magic) - magic) | ((I32)x & splat((int32_t)0x80000000));
  return magnitude < magic ? (F32)whole : x;
}
inline I32 to_int(F32 x) { return __builtin_convertvector(round(x), I32); }
inline F32 to_float(I32 x) { return __builtin_convertvector(x, F32); }
inline F32 scaled(F32 x, F32 whole) { return x * (F32)power_of_two(to_int(max(splat(-127.0f), whole))); }
inline float sum(F32 x) { return (x[0] + x[2]) + (x[1] + x[3]); }
inline int32_t sum(I32 x) { return x[0] + x[1] + x[2] + x[3]; }
inline float highest(F32 x) {
  const F32 top = max(x, F32{x[2], x[3], x[0], x[1]});
  return top[0] > top[1] ? top[0] : top[1];
}

inline I32 repeat_four(const void* p) { return load_words(p); }
inline I32 look_up(const uint8_t (&table)[16], I32 bytes) {
  uint8_t each[sizeof bytes];
  std::memcpy(each, &bytes, sizeof bytes);
  for (uint8_t& byte : each) byte = table[byte];
  return copied<I32>(each);
}
inline void eights(const char* const (&at)[LANES / 4], size_t offset, I32 (&x)[2]) {
  EACH(half, 2) x[half] = load_words(at[0] + offset + half * sizeof(I32));
}
inline void interleave(I32 a, I32 b, I32& low, I32& high) {
  const I32 low_halves = splat(0xffff);
  const I32 even = (a & low_halves) | (b << 16), odd = ((a >> 16) & low_halves) | (b & ~low_halves);
  low = __builtin_shuffle(even, odd, I32{0, 4, 1, 5}), high = __builtin_shuffle(even, odd, I32{2, 6, 3, 7});
}

inline I32 repeat_word(const void* p) { return splat(word_at(p)); }

#include "isa/words.h"

using Bf16 = SplitBf16;
using FloatCodes = WidenedCodes;
using Int4Codes = WidenedCodes;
struct Int8 {  // four unsigned weights (value + 128) times four signed activations; a product fits 16 bits
  typedef int16_t S16 __attribute__((vector_size(16)));
  using Acc = I32;
  static constexpr int32_t OFFSET = 128;
  using Weights = Halves;
  using Row = Halves;
  static Weights weights(I32 bytes) { return {bytes & 0x00ff00ff, (bytes >> 8) & 0x00ff00ff}; }
  static Weights weights(const void* p) { return weights(load_words(p)); }
  static Row row(const void* p) {
    const S16 x = (S16)splat(word_at(p));
    return {(I32)((x << 8) >> 8), (I32)(x >> 8)};
  }
  static Acc pair(Acc acc, I32 w, I32 x) {
#if defined(__SSE2__)
    return acc + (I32)__builtin_ia32_pmaddwd128((S16)w, (S16)x);
#else
    const I32 product = (I32)((S16)w * (S16)x);
    return acc + ((product << 16) >> 16) + (product >> 16);
#endif
  }
  static Acc dot(Acc acc, Weights w, Row x) { return pair(pair(acc, w.even, x.even), w.odd, x.odd); }
};
using WideInt8 = Int8;
template <int> using SmallCodes = Int8;
