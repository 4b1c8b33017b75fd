// The norms between the products of Mamba 1: each of three parts of a row, of `steps`, `state_size` and `state_size` elements,
// is scaled to a mean square of 1, times weight; in float and rounded once. A block has one part of one row; the sum of
// squares adds over a thread's elements, the lanes of a warp, and warps.
// Bytes: 4 per element; floor at 4.3 TB/s: 2 us for 8,192 rows of 288, far less than the latency of a row's two passes.
//
// -D SCALAR: bf16 or fp16. THREADS, SHARED_BYTES.
#include "device.cuh"

struct NormPartsParams {
  void* y;              // [rows, steps + 2 * state_size], rows y_stride apart
  const void* x;        // likewise, x_stride
  const float* weight;  // [steps + 2 * state_size]
  int64_t y_stride, x_stride;
  int32_t steps, state_size;
  float eps;
};

constexpr int WARPS = THREADS / 32;
static_assert(SHARED_BYTES == WARPS * 4);

KERNEL(norm_parts, NormPartsParams) {
  DYNAMIC_SHARED(shared);
  const int part = blockIdx.y, size = part ? p.state_size : p.steps;
  const int first = part ? p.steps + (part - 1) * p.state_size : 0;
  const SCALAR* x = static_cast<const SCALAR*>(p.x) + blockIdx.x * p.x_stride + first;
  SCALAR* y = static_cast<SCALAR*>(p.y) + blockIdx.x * p.y_stride + first;
  float squares = 0.f;
  for (int at = threadIdx.x; at < size; at += THREADS) squares = fmaf(to_float(x[at]), to_float(x[at]), squares);
  const float scale = 1.f / sqrtf(block_sum<WARPS>(squares, reinterpret_cast<float*>(shared)) / size + p.eps);
  for (int at = threadIdx.x; at < size; at += THREADS) y[at] = from_float<SCALAR>(to_float(x[at]) * scale * p.weight[first + at]);
}
