// out = ACTIVATION(gate) * up, or without a gate ACTIVATION(x), in float and rounded once. One pack of 8 per thread.
// Bytes: 6 * SIZE per row, 4 * SIZE without a gate; floor at 4.3 TB/s: 164 us for 8,192 gated rows of 14,336.
// The emulator has other versions of exp2_approx and erff, so a device's bits may differ from the emulator's here.
//
// -D SCALAR: bf16 or fp16. SIZE: elements of an out row, a multiple of 8. ACTIVATION: a function below. IS_GATED: 0 or 1.
// THREADS, SHARED_BYTES.
#include "packs.cuh"

struct ActivationParams {
  void* out;             // [rows, SIZE]
  const void* x;         // [rows, SIZE], whose rows are x_packs packs of 8 apart
  const void* up;        // likewise, with IS_GATED
  const int32_t* count;  // rows in use, or null: all
  int x_packs, up_packs;
  float alpha_p, alpha_n;  // xielu
};

constexpr int PACKS = SIZE / 8;
static_assert(SIZE % 8 == 0 && SHARED_BYTES == 0);

DEVICE float silu(float x) { return x / (1.f + exp2_approx(-LOG2_E * x)); }
// The usual (1 + tanh(y)) / 2 is 1 / (1 + exp(-2y)), which keeps its precision where tanh is near -1.
DEVICE float gelu_tanh(float x) {
  constexpr float SQRT_2_OVER_PI = 0.7978845608028654f;
  const float y = SQRT_2_OVER_PI * (x + 0.044715f * x * x * x);
  return x / (1.f + exp2_approx(-2.f * LOG2_E * y));
}
DEVICE float gelu_erf(float x) {
  constexpr float SQRT_HALF = 0.7071067811865476f;
  return 0.5f * x * (1.f + erff(x * SQRT_HALF));
}
DEVICE float relu(float x) { return x < 0.f ? 0.f : x; }  // a NaN stays a NaN
DEVICE float relu2(float x) { return relu(x) * relu(x); }
// alpha_p * x * x + x / 2 above 0, alpha_n * (exp(x) - 1 - x) + x / 2 below; near 0 by a series, as the difference cancels.
DEVICE float xielu(float x, float alpha_p, float alpha_n) {
  if (x > 0.f) return fmaf(alpha_p * x, x, 0.5f * x);
  const float series = fmaf(fmaf(fmaf(fmaf(1.f / 720, x, 1.f / 120), x, 1.f / 24), x, 1.f / 6), x, 0.5f);
  const float beyond = x > -0.25f ? series * x * x : exp2_approx(LOG2_E * x) - 1.f - x;
  return fmaf(alpha_n, beyond, 0.5f * x);
}

DEVICE float activated(float x, const ActivationParams&, float (*function)(float)) { return function(x); }
DEVICE float activated(float x, const ActivationParams& p, float (*function)(float, float, float)) {
  return function(x, p.alpha_p, p.alpha_n);
}

KERNEL(activation, ActivationParams) {
  const int64_t row = blockIdx.x;
  const int at = blockIdx.y * THREADS + threadIdx.x;
  if (at >= PACKS) return;
  if (p.count && row >= *p.count) return;
  float x[8], up[8];
  load8<SCALAR>(x, p.x, row * p.x_packs + at);
  if (IS_GATED) load8<SCALAR>(up, p.up, row * p.up_packs + at);
#pragma unroll
  for (int e = 0; e < 8; e++) x[e] = activated(x[e], p, ACTIVATION) * (IS_GATED ? up[e] : 1.f);
  store8<SCALAR>(p.out, row * PACKS + at, x);
}
