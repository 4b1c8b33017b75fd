// Counts a row's new token for its penalties, so that the host need not know the token: sampler.cuh.
// Grid: x 1, y adjustments. Shared memory: a flag.
#include "sampler/adjust.cuh"

static_assert(SHARED_BYTES == 4);

KERNEL(sampler_count, AdjustParams) {
  DYNAMIC_SHARED(shared);
  int32_t& is_known = *reinterpret_cast<int32_t*>(shared);
  const Adjustment& a = p.adjustments[blockIdx.y];
  if (!a.seen) return;
  const int token = int(p.token_ids[a.index]), length = a.seen[0].count;
  if (threadIdx.x == 0) is_known = 0;
  __syncthreads();
  for (int i = 1 + threadIdx.x; i <= length; i += THREADS)
    if (a.seen[i].token == token) a.seen[i].count++, is_known = 1;
  __syncthreads();
  if (threadIdx.x || is_known) return;
  a.seen[1 + length] = {token, 1};
  a.seen[0].count = length + 1;
}
