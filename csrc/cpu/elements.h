// Elements of arrays, by type, for code that is generic over the types.
#pragma once
#include "api.h"
#include "isa/isa.h"

struct Bfloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};
struct WideBfloat16 {  // a bfloat16 stored in the size of a float
  float value;
};

// The first n of LANES elements as float, the rest 0; all of them from n = LANES on.
inline F32 get(const float* p, int n) { return n >= LANES ? load(p) : load_n(p, n); }
inline F32 get(const Bfloat16* p, int n) { return n >= LANES ? load_bf16(&p->bits) : load_bf16_n(&p->bits, n); }
inline F32 get(const Float16* p, int n) { return n >= LANES ? load_fp16(p) : load_fp16_n(p, n); }

// Rounds the first n lanes into an array.
inline void put(float* p, F32 x, int n) { n >= LANES ? store(p, x) : store_n(p, x, n); }
inline void put(Bfloat16* p, F32 x, int n) { n >= LANES ? store_bf16(&p->bits, x) : store_bf16_n(&p->bits, x, n); }
inline void put(WideBfloat16* p, F32 x, int n) { put(&p->value, (F32)(bf16_bits(x) << 16), n); }
inline void put(Float16* p, F32 x, int n) { n >= LANES ? store_fp16(p, x) : store_fp16_n(p, x, n); }

// Calls f with a value of the type that `dtype` names.
template <class Fn> inline void with_element(int32_t dtype, Fn f) {
  if (dtype == DTYPE_FP32) f(float{});
  else if (dtype == DTYPE_FP16) f(Float16{});
  else f(Bfloat16{});
}
