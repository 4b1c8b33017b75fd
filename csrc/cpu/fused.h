// a * b + c rounded once, without an instruction for it. Included by isa_portable.h, whose vectors it uses.
//
// Algorithm  a product of floats is exact in double. Its sum with c is rounded to odd: two-sum gives what was lost, and a
//            sum that lost something becomes the neighbour with an odd last bit on that side. A double rounded to odd
//            keeps enough to be rounded to float as the exact sum would be, underflow included.
#pragma once

typedef double F64x4 __attribute__((vector_size(32)));
typedef int64_t I64x4 __attribute__((vector_size(32)));
typedef int64_t I64x2 __attribute__((vector_size(16)));

inline F32 fused(F32 a, F32 b, F32 c) {
  const F64x4 product = __builtin_convertvector(a, F64x4) * __builtin_convertvector(b, F64x4);
  const F64x4 addend = __builtin_convertvector(c, F64x4), sum = product + addend;
  const F64x4 of_product = sum - addend, of_addend = sum - of_product;
  const F64x4 lost = (product - of_product) + (addend - of_addend);
  const I64x4 bits = (I64x4)sum, even = (bits & 1) - 1;
  const I64x4 is_inexact = (F64x4)((I64x4)lost & INT64_MAX) > 0.0;  // not of an infinite sum, where it is NaN
  const I64x4 outwards = ((bits ^ (I64x4)lost) >> 63) | 1;            // 1 or -1: same signs lie further from zero
  return __builtin_convertvector((F64x4)(bits + (outwards & is_inexact & even)), F32);
}

// The same for factors of at most 12 significant bits. Their product is a float unless it leaves the range of normal
// ones; and where the rounded sum is neither tiny nor infinite, a tiny product cannot have mattered.
inline F32 fused_bf16(F32 a, F32 b, F32 c) {
  const F32 sum = a * b + c;
  const I32 magnitude = (I32)sum & 0x7fffffff;
  const I64x2 is_plain = (I64x2)((magnitude >= 0x0d800000) & (magnitude < 0x7f800000));  // from 2^-100 on
  if (__builtin_expect((is_plain[0] & is_plain[1]) == -1, 1)) return sum;
  return fused(a, b, c);
}
