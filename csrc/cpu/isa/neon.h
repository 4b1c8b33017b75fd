// NEON of 64-bit ARM (aarch64), which every such processor has; with SDOT if the flags allow it (ISA_NAME neon_dotprod:
// Neoverse N1, Graviton 2, Apple M1 and later). Vocabulary: isa.h.
//
// Products of bfloat16 are fp32 FMAs on halves widened by shifts, not BFDOT or BFMMLA: these round the sum of two (or four)
// products to odd and flush denormals by other rules, whatever FPCR says, so no other processor could repeat their bits at
// a reasonable cost. FPCR.EBF16 changes that only on the newest cores.
#pragma once
#include <arm_neon.h>

#ifdef __ARM_FEATURE_DOTPROD
constexpr const char* ISA_NAME = "neon_dotprod";
#else
constexpr const char* ISA_NAME = "neon";
#endif
constexpr int LANES = 4;
typedef float F32 __attribute__((vector_size(16)));
typedef int32_t I32 __attribute__((vector_size(16)));

// Sixteen accumulators for any number of rows: enough chains for four FMA units of latency 4. With weights split in two
// (8), a row (2) and a mask, four rows take 27 of 32 registers.
constexpr int REGISTERS = 32;
constexpr int MAX_SPLIT_ROWS = 4;
constexpr int MAX_ROWS = 4;
constexpr bool WIDENS_BF16 = false;  // not measured
constexpr int strip_vectors(int rows) { return rows == 1 ? 16 : rows == 2 ? 8 : 4; }

inline void opaque(F32& x) { asm("" : "+w"(x)); }
inline void opaque(I32& x) { asm("" : "+w"(x)); }

inline F32 splat(float x) { return (F32)vdupq_n_f32(x); }
inline I32 splat(int32_t x) { return (I32)vdupq_n_s32(x); }

template <class Vector> inline Vector copied(const void* p) {
  Vector x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
inline F32 load(const float* p) { return (F32)vld1q_f32(p); }
inline void store(float* p, F32 x) { vst1q_f32(p, (float32x4_t)x); }
inline void store_n(float* p, F32 x, int n) { std::memcpy(p, &x, 4 * n); }
inline I32 load_words(const void* p) { return copied<I32>(p); }  // vld1q_s32 would require aligned words
// The first n elements, then zeros. No memcpy of n elements: a call would move accumulators to the stack.
template <class Vector, class Element> inline Vector copied_n(const void* p, int n) {
  static constexpr Element NOTHING = 0;
  const auto element = [&](int i) { return copied<Element>(i < n ? (const char*)p + i * sizeof(Element) : (const char*)&NOTHING); };
  return Vector{element(0), element(1), element(2), element(3)};
}
inline I32 load_words_n(const void* p, int n) { return copied_n<I32, int32_t>(p, n); }
inline F32 load_n(const float* p, int n) { return (F32)load_words_n(p, n); }
inline void store_words(void* p, I32 x) { std::memcpy(p, &x, sizeof x); }

inline F32 from_bf16(uint16x4_t x) { return (F32)vshll_n_u16(x, 16); }
inline uint16x4_t to_bf16(F32 x) { return vmovn_u32((uint32x4_t)bf16_bits(x)); }
inline F32 load_bf16(const uint16_t* p) { return from_bf16(vld1_u16(p)); }
inline F32 load_bf16_n(const uint16_t* p, int n) { return from_bf16(copied_n<uint16x4_t, uint16_t>(p, n)); }
inline void store_bf16(uint16_t* p, F32 x) { vst1_u16(p, to_bf16(x)); }
inline void store_bf16_n(uint16_t* p, F32 x, int n) {
  const uint16x4_t halves = to_bf16(x);
  std::memcpy(p, &halves, 2 * n);
}
typedef uint16x4_t F16;
inline F32 from_fp16(F16 x) { return (F32)vcvt_f32_f16(vreinterpret_f16_u16(x)); }
inline F16 to_fp16(F32 x) { return vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)x)); }
inline F32 load_fp16(const void* p) { return from_fp16(copied<F16>(p)); }
inline F32 load_fp16_n(const void* p, int n) { return from_fp16(copied_n<F16, uint16_t>(p, n)); }
inline void store_halves(void* p, F16 x) { std::memcpy(p, &x, sizeof x); }
inline void store_fp16(void* p, F32 x) { store_halves(p, to_fp16(x)); }
inline void store_fp16_n(void* p, F32 x, int n) {
  const F16 halves = to_fp16(x);
  std::memcpy(p, &halves, 2 * n);
}
inline F16 even_halves(I32 words) { return vmovn_u32((uint32x4_t)words); }
inline F16 odd_halves(I32 words) { return vshrn_n_u32((uint32x4_t)words, 16); }
inline F32 load_u8(const void* p) {
  const uint8x8_t bytes = vreinterpret_u8_u32(vdup_n_u32((uint32_t)word_at(p)));
  return (F32)vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(bytes))));
}
inline F32 load_s8(const void* p) {
  const int8x8_t bytes = vreinterpret_s8_s32(vdup_n_s32(word_at(p)));
  return (F32)vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))));
}
inline void store_s8(int8_t* p, I32 x) {
  const int16x4_t halves = vqmovn_s32((int32x4_t)x);
  const int8x8_t bytes = vqmovn_s16(vcombine_s16(halves, halves));
  std::memcpy(p, &bytes, 4);
}

inline F32 fma(F32 a, F32 b, F32 c) { return (F32)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
inline F32 max(F32 a, F32 b) { return a > b ? a : b; }  // if one is NaN, the second operand, as on x86; vmaxq differs
inline F32 min(F32 a, F32 b) { return a < b ? a : b; }
inline F32 round(F32 x) { return (F32)vrndnq_f32((float32x4_t)x); }
inline I32 to_int(F32 x) { return (I32)vcvtnq_s32_f32((float32x4_t)x); }
inline F32 to_float(I32 x) { return (F32)vcvtq_f32_s32((int32x4_t)x); }
inline F32 scaled(F32 x, F32 whole) { return x * (F32)power_of_two(to_int(max(splat(-127.0f), whole))); }
inline float sum(F32 x) { return (x[0] + x[2]) + (x[1] + x[3]); }
inline int32_t sum(I32 x) { return vaddvq_s32((int32x4_t)x); }
inline float highest(F32 x) {
  const F32 top = max(x, F32{x[2], x[3], x[0], x[1]});
  return top[0] > top[1] ? top[0] : top[1];
}

inline I32 repeat_four(const void* p) { return load_words(p); }
inline I32 look_up(const uint8_t (&table)[16], I32 bytes) { return (I32)vqtbl1q_u8(vld1q_u8(table), (uint8x16_t)bytes); }
inline void eights(const char* const (&at)[LANES / 4], size_t offset, I32 (&x)[2]) {
  EACH(half, 2) x[half] = load_words(at[0] + offset + half * sizeof(I32));
}
inline void interleave(I32 a, I32 b, I32& low, I32& high) {
  low = (I32)vzip1q_s16((int16x8_t)a, (int16x8_t)b), high = (I32)vzip2q_s16((int16x8_t)a, (int16x8_t)b);
}

inline I32 repeat_word(const void* p) {
  I32 word = splat(word_at(p));
  opaque(word);  // otherwise gcc splits it in general registers, before the broadcast
  return word;
}
inline F32 add_product(F32 sum, F32 a, F32 b) { return fma(a, b, sum); }
inline F32 add_product_bf16(F32 sum, F32 a, F32 b) { return fma(a, b, sum); }

#include "isa/words.h"

using Bf16 = SplitBf16;
using FloatCodes = WidenedCodes;
using Int4Codes = WidenedCodes;
// Four unsigned weights (value + 128) times four signed activations. NEON multiplies signed by signed, so a weight's offset
// is removed when it is loaded, by flipping its highest bit.
#ifdef __ARM_FEATURE_DOTPROD
struct Int8 {
  using Acc = I32;
  using Weights = I32;
  using Row = I32;
  static constexpr int32_t OFFSET = 0;
  static Weights weights(I32 bytes) { return bytes ^ splat((int32_t)0x80808080); }
  static Weights weights(const void* p) { return weights(load_words(p)); }
  static Row row(const void* p) { return splat(word_at(p)); }
  static Acc dot(Acc acc, Weights w, Row x) { return (I32)vdotq_s32((int32x4_t)acc, (int8x16_t)w, (int8x16_t)x); }
};
#else
struct Int8 {  // in 16 bits, which hold two products: 2 * 128 * 127 < 2^15
  using Acc = I32;
  using Weights = Halves;
  using Row = Halves;
  static constexpr int32_t OFFSET = 0;
  static Halves split(I32 bytes) {
    const int16x8_t halves = (int16x8_t)bytes;
    return {(I32)vshrq_n_s16(vshlq_n_s16(halves, 8), 8), (I32)vshrq_n_s16(halves, 8)};
  }
  static Weights weights(I32 bytes) { return split(bytes ^ splat((int32_t)0x80808080)); }
  static Weights weights(const void* p) { return weights(load_words(p)); }
  static Row row(const void* p) { return split(splat(word_at(p))); }
  static Acc dot(Acc acc, Weights w, Row x) {
    const int16x8_t even = vmulq_s16((int16x8_t)w.even, (int16x8_t)x.even);
    return (I32)vpadalq_s16((int32x4_t)acc, vmlaq_s16(even, (int16x8_t)w.odd, (int16x8_t)x.odd));
  }
};
#endif
using WideInt8 = Int8;
template <int> using SmallCodes = Int8;
