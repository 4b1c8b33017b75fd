// Rows of tokens to their places, times their weights, in float and rounded once: for experts that weigh their inputs.
// One pack of 8 per thread. Bytes: 4 * SIZE per place.
//
// -D SCALAR: bf16 or fp16. SIZE: a multiple of 8. TOP_K. THREADS, SHARED_BYTES.
#include "packs.cuh"

struct WeighExpertsParams {
  void* out;              // [places, SIZE]
  const void* x;          // [rows, SIZE]
  const int32_t* places;  // [rows, TOP_K]; -1: of another rank
  const float* weights;   // [rows, TOP_K]
};

constexpr int PACKS = SIZE / 8;
static_assert(SIZE % 8 == 0 && SHARED_BYTES == 0);

KERNEL(weigh_experts, WeighExpertsParams) {
  const int64_t entry = blockIdx.x;
  const int at = blockIdx.y * THREADS + threadIdx.x, place = p.places[entry];
  if (at >= PACKS || place < 0) return;
  const float weight = p.weights[entry];
  float x[8];
  load8<SCALAR>(x, p.x, entry / TOP_K * PACKS + at);
#pragma unroll
  for (int e = 0; e < 8; e++) x[e] *= weight;
  store8<SCALAR>(p.out, int64_t(place) * PACKS + at, x);
}
