// out = gate * sigmoid(slope * gate) * (up + 1) with gate <= limit and -limit <= up <= limit, in float and rounded once, for
// the places in use. One pack of 8 per thread. Bytes: 6 * SIZE per place.
// The emulator has another exp2_approx, so a device's bits may differ from the emulator's here.
//
// -D SCALAR: bf16 or fp16. SIZE: elements of an out row, a multiple of 8. THREADS, SHARED_BYTES.
#include "packs.cuh"

struct ClampedGateParams {
  void* out;             // [rows, SIZE]
  const void* x;         // [rows, 2 * SIZE], gate then up
  const int32_t* count;  // rows in use, or null: all
  float slope, limit;
};

constexpr int PACKS = SIZE / 8;
static_assert(SIZE % 8 == 0 && SHARED_BYTES == 0);

DEVICE float at_most(float x, float limit) { return x > limit ? limit : x; }  // a NaN stays a NaN

KERNEL(clamped_gate, ClampedGateParams) {
  const int64_t row = blockIdx.x;
  const int at = blockIdx.y * THREADS + threadIdx.x;
  if (at >= PACKS || (p.count && row >= *p.count)) return;
  float gate[8], up[8];
  load8<SCALAR>(gate, p.x, row * 2 * PACKS + at);
  load8<SCALAR>(up, p.x, row * 2 * PACKS + PACKS + at);
#pragma unroll
  for (int e = 0; e < 8; e++) {
    const float x = at_most(gate[e], p.limit), y = at_most(up[e], p.limit), factor = (y < -p.limit ? -p.limit : y) + 1.f;
    gate[e] = x * factor / (1.f + exp2_approx(-LOG2_E * p.slope * x));
  }
  store8<SCALAR>(p.out, row * PACKS + at, gate);
}
