// hidden += delta (if there is one, rounded to SCALAR), then out = hidden / sqrt(mean(hidden^2) + eps) * weight.
// One block a row. Bytes: 8 * size a row with delta (read and write hidden, read delta, write out) of 16-bit floats, 4 * size
// without; floor at 4.3 TB/s: 62 us for 8,192 rows of 4,096 with delta. A row is read from memory once: each thread keeps its
// packs in registers. Order of additions: within a pack of 8, over a thread's packs, the lanes of a warp, the warps.
//
// -D SCALAR: bf16 or fp16. SIZE: elements of a row, a multiple of 8. THREADS, SHARED_BYTES.
#include "packs.cuh"

struct RmsNormParams {
  void* out;            // [rows, SIZE]
  void* hidden;         // [rows, SIZE]
  const void* delta;    // [rows, SIZE], or null
  const float* weight;  // [SIZE]
  float eps;
};

constexpr int PACKS = SIZE / 8, PACKS_PER_THREAD = (PACKS + THREADS - 1) / THREADS, WARPS = THREADS / 32;
static_assert(SIZE % 8 == 0 && SHARED_BYTES == WARPS * 4);

KERNEL(rms_norm, RmsNormParams) {
  DYNAMIC_SHARED(shared);
  const int64_t row = int64_t(blockIdx.x) * PACKS;
  float hidden[PACKS_PER_THREAD][8], sum = 0.f;
#pragma unroll
  for (int i = 0; i < PACKS_PER_THREAD; i++) {
    const int at = i * THREADS + threadIdx.x;
    if (at >= PACKS) break;
    load8<SCALAR>(hidden[i], p.hidden, row + at);
    if (p.delta) {
      float delta[8];
      load8<SCALAR>(delta, p.delta, row + at);
#pragma unroll
      for (int e = 0; e < 8; e++) hidden[i][e] = to_float(from_float<SCALAR>(hidden[i][e] + delta[e]));
      store8<SCALAR>(p.hidden, row + at, hidden[i]);
    }
#pragma unroll
    for (int e = 0; e < 8; e++) sum = fmaf(hidden[i][e], hidden[i][e], sum);
  }
  const float scale = 1.f / sqrtf(block_sum<WARPS>(sum, reinterpret_cast<float*>(shared)) / SIZE + p.eps);
#pragma unroll
  for (int i = 0; i < PACKS_PER_THREAD; i++) {
    const int at = i * THREADS + threadIdx.x;
    if (at >= PACKS) break;
#pragma unroll
    for (int e = 0; e < 8; e++) hidden[i][e] = hidden[i][e] * scale * p.weight[at * 8 + e];
    store8<SCALAR>(p.out, row + at, hidden[i]);
  }
}
