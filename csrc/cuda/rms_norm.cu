// hidden += delta (if there is one, rounded to SCALAR), then out = hidden / sqrt(mean(hidden^2) + eps) * weight.
// One block per row. Bytes: 8 * SIZE per row of 16-bit floats with delta (read and write hidden, read delta, write out),
// 4 * SIZE without; floor at 4.3 TB/s: 62 us for 8,192 rows of 4,096 with delta. A row is read from memory once (norm.cuh,
// which also describes the order of additions).
//
// -D SCALAR: bf16 or fp16. SIZE: elements of a row, a multiple of 8. THREADS, SHARED_BYTES.
#include "norm.cuh"

struct RmsNormParams {
  void* out;            // [rows, SIZE]
  void* hidden;         // [rows, SIZE]
  const void* delta;    // [rows, SIZE], or null
  const float* weight;  // [SIZE]
  float eps;
};
static_assert(SHARED_BYTES == WARPS * 4);

KERNEL(rms_norm, RmsNormParams) {
  DYNAMIC_SHARED(shared);
  const int64_t row = int64_t(blockIdx.x) * PACKS;
  Row hidden;
  load_row(hidden, p.hidden, p.delta, row);
  float sum = 0.f;
  each_pack(hidden, [&](const float(&x)[8], int) {
#pragma unroll
    for (int e = 0; e < 8; e++) sum = fmaf(x[e], x[e], sum);
  });
  const float scale = 1.f / sqrtf(block_sum<WARPS>(sum, reinterpret_cast<float*>(shared)) / SIZE + p.eps);
  each_pack(hidden, [&](float(&x)[8], int at) {
#pragma unroll
    for (int e = 0; e < 8; e++) x[e] = x[e] * scale * p.weight[at * 8 + e];
    store8<SCALAR>(p.out, row + at, x);
  });
}
