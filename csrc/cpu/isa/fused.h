// a * b + c rounded once, without a fused instruction. Included by isa/portable.h, whose vectors it uses.
//
// Algorithm  a product of floats is exact in double. Its sum with c, rounded to double, is then rounded to float like the
//            exact sum, unless it is halfway between two floats of 24 bits: the exact sum may be on either side. Therefore
//            the sum is rounded to odd: two-sum returns the rounding error, and an inexact sum is replaced by the neighbour
//            with an odd last bit on the error's side. All of this also holds for results that underflow.
#pragma once

typedef double F64x4 __attribute__((vector_size(32)));
typedef int64_t I64x4 __attribute__((vector_size(32)));
typedef int64_t I64x2 __attribute__((vector_size(16)));

inline bool is_false(I32 mask) {  // in all lanes
#if defined(__SSE2__)
  return __builtin_ia32_movmskps((F32)mask) == 0;
#else
  return (((I64x2)mask)[0] | ((I64x2)mask)[1]) == 0;
#endif
}

// Rare, and not inlined: inlined into every product, this and `rarely_fused` made the library twice as large.
[[gnu::noinline]] static F32 odd_sum(F32 a, F32 b, F32 c) {
  const F64x4 product = __builtin_convertvector(a, F64x4) * __builtin_convertvector(b, F64x4);
  const F64x4 addend = __builtin_convertvector(c, F64x4), sum = product + addend;
  const F64x4 of_product = sum - addend, of_addend = sum - of_product;
  const F64x4 lost = (product - of_product) + (addend - of_addend);
  const I64x4 bits = (I64x4)sum, even = (bits & 1) - 1;
  const I64x4 is_inexact = (F64x4)((I64x4)lost & INT64_MAX) > 0.0;  // false for an infinite sum, whose error is NaN
  const I64x4 outwards = ((bits ^ (I64x4)lost) >> 63) | 1;            // 1 or -1: away from zero if the signs are equal
  return __builtin_convertvector((F64x4)(bits + (outwards & is_inexact & even)), F32);
}

inline F32 fused(F32 a, F32 b, F32 c) {
  const F64x4 product = __builtin_convertvector(a, F64x4) * __builtin_convertvector(b, F64x4);
  const F64x4 addend = __builtin_convertvector(c, F64x4), sum = product + addend;
  const I32 front = (I32)__builtin_shufflevector(sum, sum, 0, 1), back = (I32)__builtin_shufflevector(sum, sum, 2, 3);
  const I32 low_bits = __builtin_shuffle(front, back, I32{0, 2, 4, 6}) & 0x1fffffff;  // little-endian
  if (__builtin_expect(is_false(low_bits == 0x10000000), 1)) return __builtin_convertvector(sum, F32);
  return odd_sum(a, b, c);
}

[[gnu::noinline]] static F32 rarely_fused(F32 a, F32 b, F32 c) { return fused(a, b, c); }

// The same for factors of at most 12 significant bits. Their product is a float unless it is outside the range of normal
// floats; and if the rounded sum is neither tiny nor infinite, a tiny product cannot have changed it.
inline F32 fused_bf16(F32 a, F32 b, F32 c) {
  const F32 sum = a * b + c;
  const I32 magnitude = (I32)sum & 0x7fffffff;
  const I32 is_strange = (magnitude < 0x0d800000) | (magnitude >= 0x7f800000);  // below 2^-100, or not finite
  if (__builtin_expect(is_false(is_strange), 1)) return sum;
  return rarely_fused(a, b, c);
}
