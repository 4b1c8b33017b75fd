// Each token's sum over its experts' outputs times their weights, and the shared expert's output, rounded once. A share of
// the experts is summed from 0 in their order; shares, and segments of the shared expert, are added as in tree.cuh. One pack
// of 8 per thread. With IS_PART the result is this rank's part, which join.cu adds to the others.
// Bytes: (4 * TOP_K + 2) * SIZE per row; floor at 4.3 TB/s: 0.4 us for 128 rows of 2,048 with 8 experts each.
//
// -D SCALAR: bf16 or fp16. SIZE: a multiple of 8. TOP_K. SHARES: this rank's, 1, 2 or 4. SEGMENTS: of the shared expert,
// 0, 1, 2 or 4; 0: there is none. IS_PART: 0 or 1. THREADS, SHARED_BYTES.
#include "experts/tree.cuh"

struct CombineExpertsParams {
  void* out;               // [rows, SIZE] SCALAR; IS_PART: [rows, SIZE, or 2 * SIZE with the shared expert's] float
  const float* outputs;    // [places, SIZE]
  const int32_t* experts;  // [rows, TOP_K], ascending
  const int32_t* places;   // [rows, TOP_K]; -1: of another rank
  const float* weights;    // [rows, TOP_K], or null: 1
  const float* shared;     // [SEGMENTS, rows, SIZE]
  const float* gates;      // [rows], or null: 1
  int32_t rows, num_experts, first_share;
};

constexpr int PACKS = SIZE / 8, ALL_SHARES = 4, COLUMNS = SEGMENTS ? 2 * PACKS : PACKS;
static_assert(SIZE % 8 == 0 && SHARED_BYTES == 0);

// sums = the tree over this rank's shares.
DEVICE void add_experts(float (&sums)[8], const CombineExpertsParams& p, int64_t row, int at) {
  int64_t i = row * TOP_K;
  const int64_t end = i + TOP_K;
  add_tree<SHARES>(sums, [&](float(&share)[8], int s) {
    const int border = p.num_experts * (p.first_share + s + 1) / ALL_SHARES;
#pragma unroll
    for (int e = 0; e < 8; e++) share[e] = 0.f;
    for (; i < end && p.experts[i] < border; i++) {
      if (p.places[i] < 0) continue;
      float output[8];
      load8<float>(output, p.outputs, int64_t(p.places[i]) * PACKS + at);
      const float weight = p.weights ? p.weights[i] : 1.f;
#pragma unroll
      for (int e = 0; e < 8; e++) share[e] += output[e] * weight;
    }
  });
}

KERNEL(combine_experts, CombineExpertsParams) {
  const int64_t row = blockIdx.x;
  const int at = blockIdx.y * THREADS + threadIdx.x;
  if (at >= PACKS) return;
  float sums[8], shared[8];
  add_experts(sums, p, row, at);
  if constexpr (SEGMENTS > 0) load_added<SEGMENTS>(shared, p.shared, row * PACKS + at, int64_t(p.rows) * PACKS);
  if constexpr (IS_PART) {
    store_floats(static_cast<float*>(p.out), row * COLUMNS + at, sums);
    if constexpr (SEGMENTS > 0) store_floats(static_cast<float*>(p.out), row * COLUMNS + PACKS + at, shared);
  } else {
    const float gate = p.gates ? p.gates[row] : 1.f;
#pragma unroll
    for (int e = 0; e < 8; e++)
      if (SEGMENTS > 0) sums[e] += shared[e] * gate;
    store8<SCALAR>(p.out, row * PACKS + at, sums);
  }
}
