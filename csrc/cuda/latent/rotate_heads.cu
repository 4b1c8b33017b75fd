// Rotates the last ROPE_DIM elements of each head's query, and writes them to the end of the head's query in the space of the
// latent. A thread has a pack of 8 of either half. Bytes: 4 * ROPE_DIM per token and head.
//
// -D SCALAR: bf16 or fp16. ROPE_DIM: a multiple of 16. THREADS, SHARED_BYTES.
#include "latent/rotate.cuh"

struct RotateHeadsParams {
  void* out;                 // [tokens, heads, ROPE_DIM], strided
  const void* query;         // likewise
  const float* angles;       // [positions, ROPE_DIM]
  const int64_t* positions;  // [tokens]
  int64_t out_stride, out_head_stride, query_stride, query_head_stride;  // elements, multiples of 8
  int32_t heads;
};
static_assert(SHARED_BYTES == 0);

KERNEL(rotate_heads, RotateHeadsParams) {
  const int64_t token = blockIdx.x;
  const int at = blockIdx.y * THREADS + threadIdx.x, head = at / HALF_PACKS;
  if (head >= p.heads) return;
  SCALAR* out = static_cast<SCALAR*>(p.out) + token * p.out_stride + head * p.out_head_stride;
  const SCALAR* query = static_cast<const SCALAR*>(p.query) + token * p.query_stride + head * p.query_head_stride;
  rotate_pack(out, query, p.angles + p.positions[token] * ROPE_DIM, at % HALF_PACKS);
}
