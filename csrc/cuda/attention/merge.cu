// Joins the parts of rows whose keys were divided into splits, in the order of the splits, and writes the results.
// Grid (any, kv_heads): blocks loop over the list of merges; a warp has a row, a lane four dims. Bytes read: 4 * HEAD_DIM
// + 8 per row and split, 1.6 % of the bytes of the splits' keys and values (bf16, GROUP 4).
//
// -D SCALAR: bf16 or fp16. HEAD_DIM. THREADS, SHARED_BYTES 0.
#include "attention/softmax.cuh"

struct AttentionMergeParams {
  void* out;               // [tokens, heads, HEAD_DIM] SCALAR
  const float* part_sums;  // [slots, kv_heads, HEAD_DIM]
  const float2* part_tops; // [slots, kv_heads] top, total
  const float* sinks;      // [heads], or null
  const int* row_starts;   // [requests + 1]
  const Merge* merges;
  const int* num_merges;
  int64_t out_stride;  // elements from token to token
  int group;
  float to_log2, value_scale;
};
static_assert(SHARED_BYTES == 0 && HEAD_DIM % 4 == 0);

DEVICE void merge_row(const AttentionMergeParams& p, const Merge& merge, int row, int dim) {
  const int token = p.row_starts[merge.request] + (merge.first_row + row) / p.group;
  const int head = blockIdx.y * p.group + (merge.first_row + row) % p.group;
  float top = MASKED, total = 0.f;
  float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
  for (int split = 0; split < merge.splits; split++) {
    const int64_t slot = int64_t(merge.slot + split * merge.rows + row) * gridDim.y + blockIdx.y;
    const float2 part = p.part_tops[slot];
    const float4 x = *reinterpret_cast<const float4*>(p.part_sums + slot * HEAD_DIM + dim);
    const Shares shares = join(top, total, part.x, part.y, p.to_log2);
    sum = make_float4(shares.join(sum.x, x.x), shares.join(sum.y, x.y), shares.join(sum.z, x.z), shares.join(sum.w, x.w));
  }
  const float scale = normaliser(top, total, p.sinks ? p.sinks + head : nullptr, p.to_log2, p.value_scale);
  SCALAR* out = static_cast<SCALAR*>(p.out) + token * p.out_stride + head * HEAD_DIM + dim;
  *reinterpret_cast<uint2*>(out) = make_uint2(pack2<SCALAR>(finished(sum.x, scale), finished(sum.y, scale)),
                                              pack2<SCALAR>(finished(sum.z, scale), finished(sum.w, scale)));
}

KERNEL(attention_merge, AttentionMergeParams) {
  for (int i = blockIdx.x; i < *p.num_merges; i += gridDim.x) {
    const Merge merge = p.merges[i];
    for (int row = threadIdx.x / 32; row < merge.rows; row += THREADS / 32)
      for (int dim = threadIdx.x % 32 * 4; dim < HEAD_DIM; dim += 128) merge_row(p, merge, row, dim);
  }
}
