// hidden += delta (if there is one, rounded to SCALAR), then out = (hidden - mean) / sqrt(variance + eps) * weight + bias.
// One block per row. As in rms_norm.cu, bytes included, except for the mean: the variance is summed over the centred row,
// in a second pass over registers, so that a large mean costs no precision.
//
// -D SCALAR: bf16 or fp16. SIZE: elements of a row, a multiple of 8. THREADS, SHARED_BYTES.
#include "norm.cuh"

struct LayerNormParams {
  void* out;            // [rows, SIZE]
  void* hidden;         // [rows, SIZE]
  const void* delta;    // [rows, SIZE], or null
  const float* weight;  // [SIZE]
  const float* bias;    // [SIZE], or null
  float eps;
};
static_assert(SHARED_BYTES == 2 * WARPS * 4);

KERNEL(layer_norm, LayerNormParams) {
  DYNAMIC_SHARED(shared);
  float* const scratch = reinterpret_cast<float*>(shared);
  const int64_t row = int64_t(blockIdx.x) * PACKS;
  Row hidden;
  load_row(hidden, p.hidden, p.delta, row);
  float sum = 0.f;
  each_pack(hidden, [&](const float(&x)[8], int) {
#pragma unroll
    for (int e = 0; e < 8; e++) sum += x[e];
  });
  const float mean = block_sum<WARPS>(sum, scratch) / SIZE;
  float squares = 0.f;
  each_pack(hidden, [&](float(&x)[8], int) {
#pragma unroll
    for (int e = 0; e < 8; e++) {
      x[e] -= mean;
      squares = fmaf(x[e], x[e], squares);
    }
  });
  const float scale = 1.f / sqrtf(block_sum<WARPS>(squares, scratch + WARPS) / SIZE + p.eps);
  each_pack(hidden, [&](float(&x)[8], int at) {
#pragma unroll
    for (int e = 0; e < 8; e++) x[e] = x[e] * scale * p.weight[at * 8 + e];
    if (p.bias)
#pragma unroll
      for (int e = 0; e < 8; e++) x[e] += p.bias[at * 8 + e];
    store8<SCALAR>(p.out, row + at, x);
  });
}
