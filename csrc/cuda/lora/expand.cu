// y += scale * B (A x) for the rows of a group: a thread has one output, reads its row of B once, and adds the ranks in
// order, from 0; y is rounded once more. Ranks of a tensor-parallel group add their shares of A x in their order.
// Bytes: B once for each group, y twice. Floor at 4.3 TB/s: 32 adapters of rank 16, 4,096 outputs: 1 us.
//
// -D SCALAR: bf16 or fp16. Y_SCALAR: of y, the same or float. THREADS, SHARED_BYTES.
#include "lora/lora.cuh"

static_assert(SHARED_BYTES == GROUP_ROWS * MAX_RANK * 4);

KERNEL(lora_expand, LoraParams) {
  DYNAMIC_SHARED(shared);
  float* factors = reinterpret_cast<float*>(shared);  // [GROUP_ROWS][MAX_RANK]
  const LoraGroup group = group_of(p, blockIdx.x);
  if (group.count == 0) return;
  int chunk = blockIdx.y, part = 0;
  for (int chunks; chunk >= (chunks = (p.starts[part + 1] - p.starts[part] + THREADS - 1) / THREADS); part++) chunk -= chunks;
  const LoraPart lora = p.table[group.place * p.parts + part];
  if (lora.rank == 0) return;
  for (int i = threadIdx.x; i < group.count * lora.rank; i += THREADS) {
    const int m = i / lora.rank, rank = i % lora.rank;
    const float* sums = p.sums + (int64_t(group.rows[m]) * p.parts + part) * p.max_rank + rank;
    float sum = sums[0];
    for (int share = 1; share < p.shares; share++) sum += sums[int64_t(share) * p.rows * p.parts * p.max_rank];
    factors[m * MAX_RANK + rank] = lora.scale * sum;
  }
  __syncthreads();
  const int output = chunk * THREADS + threadIdx.x;
  if (output >= p.starts[part + 1] - p.starts[part]) return;
  const SCALAR* b = static_cast<const SCALAR*>(lora.b) + int64_t(output / PANEL) * lora.rank * PANEL + output % PANEL;
  float sums[GROUP_ROWS] = {};
  for (int rank = 0; rank < lora.rank; rank++) {
    const float weight = to_float(b[int64_t(rank) * PANEL]);
#pragma unroll
    for (int m = 0; m < GROUP_ROWS; m++)
      if (m < group.count) sums[m] = fmaf(weight, factors[m * MAX_RANK + rank], sums[m]);
  }
  Y_SCALAR* y = static_cast<Y_SCALAR*>(p.y) + p.starts[part] + output;
#pragma unroll
  for (int m = 0; m < GROUP_ROWS; m++) {
    if (m >= group.count) continue;
    Y_SCALAR& here = y[group.rows[m] * p.y_stride];
    here = from_float<Y_SCALAR>(to_float(here) + sums[m]);
  }
}
