// The parameters of paged attention, and a block's work item: where its rows and keys are, and which keys a row attends to.
#pragma once
#include "attention/source.cuh"

struct PagedAttentionParams {
  void* out;                // [tokens, heads, HEAD_DIM] SCALAR
  const void* query;        // the same
  const void* keys;         // [blocks, kv_heads, BLOCK_SIZE, HEAD_DIM] KV
  const void* values;       // the same
  float* part_sums;         // [slots, kv_heads, HEAD_DIM]
  float2* part_tops;        // [slots, kv_heads] top, total
  const float* sinks;       // [heads], or null
  const float* slopes;      // [heads], with HAS_ALIBI: a score gains slope * (key - position), in one rounding
  const int* block_tables;  // [requests, table_stride]
  const int* row_starts;    // [requests + 1] first token of each
  const int* kv_lens;       // [requests], the request's new tokens included
  const Work* work;
  const int* num_work;
  int64_t out_stride, query_stride;  // elements from token to token
  int table_stride, window;          // window 0: all
  float to_log2;                     // times a score, or a capped or slanted one: an exponent of 2
  float value_scale;
  float before, cap;  // before: with a cap 2 * log2(e) * scale / cap, with HAS_ALIBI alone the scale. cap 0: none
};

// The keys that a row attends to: [low, low + span).
struct Sight {
  int low;
  uint32_t span;
  DEVICE bool sees(int key) const { return uint32_t(key - low) < span; }
};
// The keys of a row that attends to no key after `last`.
DEVICE Sight sight_of(int last, int window) {
#if ATTENTION_CHUNK
  const int low = last / ATTENTION_CHUNK * ATTENTION_CHUNK;
#else
  const int low = window > 0 ? max(0, last - window + 1) : 0;
#endif
  return {low, uint32_t(last + 1 - low)};
}

// A block's work item, and this thread's part of it.
struct Item {
  const PagedAttentionParams& p;
  const Work& work;
  int kv_head, first_token, past;  // past: the position of the request's first new token
  int lane, row_warp, share;       // warps with the same row_warp share rows

  DEVICE Item(const PagedAttentionParams& p, const Work& work)
      : p(p), work(work), kv_head(blockIdx.y), lane(threadIdx.x % 32), row_warp(threadIdx.x / 32 % ROW_WARPS),
        share(threadIdx.x / 32 / ROW_WARPS) {
    first_token = p.row_starts[work.request];
    past = p.kv_lens[work.request] - (p.row_starts[work.request + 1] - first_token);
  }
  DEVICE int row_of(int half) const { return row_warp * 16 + lane / 4 + half * 8; }  // a lane's two rows of the item
  DEVICE int position(int row) const { return past + (work.first_row + row) / GROUP; }
  DEVICE int last_seen(int row) const { return IS_BIDIRECTIONAL ? p.kv_lens[work.request] - 1 : position(row); }
  DEVICE Sight sight(int last) const { return sight_of(last, p.window); }
  DEVICE int head(int row) const { return kv_head * GROUP + (work.first_row + row) % GROUP; }
  DEVICE int64_t at(int row, int64_t stride) const {
    return (first_token + (work.first_row + row) / GROUP) * stride + head(row) * HEAD_DIM;
  }
  DEVICE Source source() const {
    const int64_t head = int64_t(kv_head) * BLOCK_SIZE * HEAD_DIM;
    return {static_cast<const KV*>(p.keys) + head, static_cast<const KV*>(p.values) + head,
            p.block_tables + int64_t(work.request) * p.table_stride, int(gridDim.y) * BLOCK_SIZE, work.from, work.to};
  }
};
