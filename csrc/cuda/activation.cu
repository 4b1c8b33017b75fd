// out = ACTIVATION(gate) * up, in float and rounded once. One pack of 8 a thread: 32 bytes read, 16 written.
// Bytes: 6 * SIZE a row; floor at 4.3 TB/s: 164 us for 8,192 rows of 14,336.
// exp2_approx and CUDA's erff are not the emulator's, so here a device's bits may differ from it.
//
// -D SCALAR: bf16 or fp16. SIZE: elements of an out row, a multiple of 8. ACTIVATION: a function below. THREADS,
// SHARED_BYTES.
#include "packs.cuh"

struct ActivationParams {
  void* out;            // [rows, SIZE]
  const void* gate_up;  // [rows, 2 * SIZE]: gate, then up
};

constexpr int PACKS = SIZE / 8;
static_assert(SIZE % 8 == 0 && SHARED_BYTES == 0);

DEVICE float silu(float x) { return x / (1.f + exp2_approx(-LOG2_E * x)); }
// The usual (1 + tanh(y)) / 2 is 1 / (1 + exp(-2y)), which loses nothing where tanh is near -1.
DEVICE float gelu_tanh(float x) {
  constexpr float SQRT_2_OVER_PI = 0.7978845608028654f;
  const float y = SQRT_2_OVER_PI * (x + 0.044715f * x * x * x);
  return x / (1.f + exp2_approx(-2.f * LOG2_E * y));
}
DEVICE float gelu_erf(float x) {
  constexpr float SQRT_HALF = 0.7071067811865476f;
  return 0.5f * x * (1.f + erff(x * SQRT_HALF));
}

KERNEL(gated_activation, ActivationParams) {
  const int64_t row = blockIdx.x;
  const int at = blockIdx.y * THREADS + threadIdx.x;
  if (at >= PACKS) return;
  float gate[8], up[8];
  load8<SCALAR>(gate, p.gate_up, row * 2 * PACKS + at);
  load8<SCALAR>(up, p.gate_up, row * 2 * PACKS + PACKS + at);
#pragma unroll
  for (int e = 0; e < 8; e++) gate[e] = ACTIVATION(gate[e]) * up[e];
  store8<SCALAR>(p.out, row * PACKS + at, gate);
}
