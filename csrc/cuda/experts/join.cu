// out = the sum of the ranks' parts of experts' outputs, plus that of the shared expert's times its gate, rounded once.
// Parts are added as in tree.cuh. One pack of 8 per thread.
// Bytes: (4 * RANKS + 2) * SIZE per row, twice the first with a shared expert; less than a launch costs up to 128 rows.
//
// -D SCALAR: bf16 or fp16. SIZE: a multiple of 8. RANKS: 2 or 4. HAS_SHARED: 0 or 1. THREADS, SHARED_BYTES.
#include "experts/tree.cuh"

struct JoinExpertsParams {
  void* out;           // [rows, SIZE]
  const float* parts;  // [RANKS, rows, SIZE, or 2 * SIZE with the shared expert's]
  const float* gates;  // [rows], or null: 1
  int32_t rows;
};

constexpr int PACKS = SIZE / 8, COLUMNS = HAS_SHARED ? 2 * PACKS : PACKS;
static_assert(SIZE % 8 == 0 && SHARED_BYTES == 0);

KERNEL(join_experts, JoinExpertsParams) {
  const int64_t row = blockIdx.x, stride = int64_t(p.rows) * COLUMNS;
  const int at = blockIdx.y * THREADS + threadIdx.x;
  if (at >= PACKS) return;
  float sums[8], shared[8];
  load_added<RANKS>(sums, p.parts, row * COLUMNS + at, stride);
  if constexpr (HAS_SHARED) {
    load_added<RANKS>(shared, p.parts, row * COLUMNS + PACKS + at, stride);
    const float gate = p.gates ? p.gates[row] : 1.f;
#pragma unroll
    for (int e = 0; e < 8; e++) sums[e] += shared[e] * gate;
  }
  store8<SCALAR>(p.out, row * PACKS + at, sums);
}
