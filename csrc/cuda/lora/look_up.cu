// A x of an embedding, whose x has a single 1: the token's row of A, which is stored transposed.
// Bytes: one row of A a token; less than a launch costs.
//
// -D SCALAR: bf16 or fp16. THREADS, SHARED_BYTES.
#include "lora/lora.cuh"

static_assert(SHARED_BYTES == 0);

KERNEL(lora_look_up, LoraParams) {
  const LoraGroup group = group_of(p, blockIdx.x);
  if (group.count == 0) return;
  const LoraPart lora = p.table[group.place];
  for (int i = threadIdx.x; i < group.count * lora.rank; i += THREADS) {
    const int row = group.rows[i / lora.rank], rank = i % lora.rank;
    const int64_t id = static_cast<const int64_t*>(p.x)[row];
    const bool known = id >= 0 && id < p.inputs;
    p.sums[int64_t(row) * p.max_rank + rank] =
        known ? to_float(static_cast<const SCALAR*>(lora.a)[id * lora.rank + rank]) : 0.f;
  }
}
