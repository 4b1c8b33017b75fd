// Writes each token's vector to its slot of the cache: the latent, scaled to a mean square of 1 and times the norm's weight,
// then the shared key, rotated. Both are computed in float and rounded once. A token with a negative slot pads a CUDA
// graph's batch, and is not written. One block per token; the sum of squares adds within a pack of 8, then over a thread's
// packs, the lanes of a warp, and warps.
// Bytes: 4 * (KV_RANK + ROPE_DIM) per token; floor at 4.3 TB/s: 4.4 us for 8,192 tokens of 576.
//
// -D SCALAR: bf16 or fp16. KV_RANK: a multiple of 8. ROPE_DIM: a multiple of 16. THREADS, SHARED_BYTES.
#include "latent/rotate.cuh"

struct CacheLatentsParams {
  void* cache;               // [slots, KV_RANK + ROPE_DIM]
  const void* latents;       // [tokens, KV_RANK + ROPE_DIM]
  const float* weight;       // [KV_RANK]
  const float* angles;       // [positions, ROPE_DIM]
  const int64_t* positions;  // [tokens]
  const int64_t* slots;      // [tokens]
  int64_t stride;            // elements from token to token of latents, a multiple of 8
  float eps;
};

constexpr int WARPS = THREADS / 32, PACKS = KV_RANK / 8;
static_assert(KV_RANK % 8 == 0 && SHARED_BYTES == WARPS * 4);

KERNEL(cache_latents, CacheLatentsParams) {
  DYNAMIC_SHARED(shared);
  const int64_t token = blockIdx.x, slot = p.slots[token];
  if (slot < 0) return;
  const SCALAR* latent = static_cast<const SCALAR*>(p.latents) + token * p.stride;
  SCALAR* out = static_cast<SCALAR*>(p.cache) + slot * (KV_RANK + ROPE_DIM);
  float x[8], sum = 0.f;
  for (int pack = threadIdx.x; pack < PACKS; pack += THREADS) {
    load8<SCALAR>(x, latent, pack);
#pragma unroll
    for (int e = 0; e < 8; e++) sum = fmaf(x[e], x[e], sum);
  }
  const float scale = 1.f / sqrtf(block_sum<WARPS>(sum, reinterpret_cast<float*>(shared)) / KV_RANK + p.eps);
  for (int pack = threadIdx.x; pack < PACKS; pack += THREADS) {
    load8<SCALAR>(x, latent, pack);
#pragma unroll
    for (int e = 0; e < 8; e++) x[e] = x[e] * scale * p.weight[pack * 8 + e];
    store8<SCALAR>(out, pack, x);
  }
  for (int pack = threadIdx.x; pack < HALF_PACKS; pack += THREADS)
    rotate_pack(out + KV_RANK, latent + KV_RANK, p.angles + p.positions[token] * ROPE_DIM, pack);
}
