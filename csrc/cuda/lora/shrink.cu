// A x of the rows of a group: a warp has one row of A, which it reads once, and multiplies it by all rows of the group. A
// lane adds its packs of 8 in order, then the lanes are joined in a tree.
// Bytes: A once for each group. Floor at 4.3 TB/s: 32 adapters of rank 16, 4,096 inputs: 1 us.
//
// -D SCALAR: bf16 or fp16. THREADS: 32 for each of the ranks that a block has, SHARED_BYTES.
#include "lora/lora.cuh"

static_assert(SHARED_BYTES == 0);

KERNEL(lora_shrink, LoraParams) {
  const LoraGroup group = group_of(p, blockIdx.x);
  const int part = blockIdx.y, rank = blockIdx.z * (THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (group.count == 0) return;
  const LoraPart lora = p.table[group.place * p.parts + part];
  if (rank >= lora.rank) return;
  const int packs = p.inputs / 8;
  float sums[GROUP_ROWS] = {};
  for (int at = lane; at < packs; at += 32) {
    float a[8];
    load8<SCALAR>(a, lora.a, int64_t(rank) * packs + at);
#pragma unroll
    for (int m = 0; m < GROUP_ROWS; m++) {
      if (m >= group.count) continue;
      float x[8];
      load8<SCALAR>(x, p.x, group.rows[m] * (p.x_stride / 8) + at);
#pragma unroll
      for (int e = 0; e < 8; e++) sums[m] = fmaf(a[e], x[e], sums[m]);
    }
  }
#pragma unroll
  for (int m = 0; m < GROUP_ROWS; m++) {
    if (m >= group.count) continue;
    const float total = warp_sum(sums[m]);
    if (lane == 0) p.sums[(int64_t(group.rows[m]) * p.parts + part) * p.max_rank + rank] = total;
  }
}
