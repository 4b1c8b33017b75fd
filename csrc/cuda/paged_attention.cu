// out = softmax(scale * Q K^T, masked) V over the paged cache, for decode steps, chunks of prompts and verification alike.
#include "attention_softmax.cuh"
#include "attention_tiles.cuh"

struct PagedAttentionParams {
  void* out;                // [tokens, heads, HEAD_DIM] SCALAR
  const void* query;        // the same
  const void* keys;         // [blocks, kv_heads, BLOCK_SIZE, HEAD_DIM] KV
  const void* values;       // the same
  float* part_sums;         // [slots, kv_heads, HEAD_DIM]
  float2* part_tops;        // [slots, kv_heads] top, total
  const float* sinks;       // [heads], or null
  const int* block_tables;  // [requests, table_stride]
  const int* row_starts;    // [requests + 1] first token of each
  const int* kv_lens;       // [requests], the request's new tokens included
  const Work* work;
  const int* num_work;
  int64_t out_stride, query_stride;  // elements from token to token
  int table_stride, window;          // window 0: all
  float to_log2, value_scale;
  Capping capping;
};

constexpr int ROWS = 16 * ROW_WARPS;
constexpr int QUERY_BYTES = ROWS * STRIDE, SUMS = 2 * WARP_PAIRS, TOTAL_BYTES = SUMS * THREADS * 16;
constexpr int FRONT_BYTES = QUERY_BYTES > TOTAL_BYTES ? QUERY_BYTES : TOTAL_BYTES;
constexpr int MINE = WARP_KEYS / 8;  // matrices of 8 keys that one warp scores for all that share its rows
constexpr int SCORE_BYTES = SHARING > 1 ? ROWS * TILE_KEYS * 4 : 0;
static_assert(THREADS == 32 * ROW_WARPS * SHARING);
static_assert(SHARED_BYTES == FRONT_BYTES + SCORE_BYTES + RING * SLOT_BYTES + WIDE_BYTES);

// Where this thread stands, and what its block works on.
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
  DEVICE int row_of(int half) const { return row_warp * 16 + lane / 4 + half * 8; }  // of the item, for a lane's two rows
  DEVICE int position(int row) const { return past + (work.first_row + row) / GROUP; }
  DEVICE int head(int row) const { return kv_head * GROUP + (work.first_row + row) % GROUP; }
  DEVICE int64_t at(int row, int64_t stride) const {
    return (first_token + (work.first_row + row) / GROUP) * stride + head(row) * HEAD_DIM;
  }
  DEVICE Source source() const {
    const int64_t block = int64_t(gridDim.y) * BLOCK_SIZE * HEAD_DIM, head = int64_t(kv_head) * BLOCK_SIZE * HEAD_DIM;
    return {static_cast<const KV*>(p.keys) + head, static_cast<const KV*>(p.values) + head,
            p.block_tables + int64_t(work.request) * p.table_stride, block, work.from, work.to};
  }
};

using Query = uint32_t[PAIRS][4];
using Scores = float[KEY_TILES][4];
using Sums = float[SUMS][4];

DEVICE void copy_query(unsigned char* shared, const Item& item) {
  const SCALAR* query = static_cast<const SCALAR*>(item.p.query);
#pragma unroll
  for (int i = threadIdx.x; i < ROWS * HEAD_DIM / 8; i += THREADS) {
    const int row = i / (HEAD_DIM / 8), chunk = i % (HEAD_DIM / 8);
    const bool valid = row < item.work.rows;
    const int64_t at = valid ? item.at(row, item.p.query_stride) + chunk * 8 : 0;
    copy_async16(shared + row * STRIDE + chunk * 16, query + at, valid);
  }
}
DEVICE void load_query(Query& query, const unsigned char* shared, const Item& item) {
  const unsigned char* row = shared + (item.row_warp * 16 + item.lane % 16) * STRIDE + item.lane / 16 * 16;
#pragma unroll
  for (int k = 0; k < PAIRS; k++) load_matrices(query[k], row + k * 32);
}

// Of this warp's rows and its part of the tile's keys.
DEVICE void score(float (&scores)[MINE][4], const Query& query, const unsigned char* keys, const Item& item) {
  const int key = item.share * WARP_KEYS + item.lane % 8 + item.lane / 16 * 8;
  const unsigned char* row = keys + key * STRIDE + item.lane / 8 % 2 * 16;
#pragma unroll
  for (int k = 0; k < PAIRS; k++)
#pragma unroll
    for (int t = 0; t < WARP_KEYS / 16; t++) {
      uint32_t b[4];  // keys 0-7, dims 0-7 | 8-15, then keys 8-15
      load_matrices(b, row + t * 16 * STRIDE + k * 32);
      multiply_add<SCALAR>(scores[2 * t], query[k], b[0], b[1]);
      multiply_add<SCALAR>(scores[2 * t + 1], query[k], b[2], b[3]);
    }
}

DEVICE void cap_and_mask(Scores& scores, int first_key, const Item& item) {
  if (item.p.capping.cap > 0.f)
#pragma unroll
    for (int t = 0; t < KEY_TILES; t++)
#pragma unroll
      for (int e = 0; e < 4; e++) scores[t][e] = capped(scores[t][e], item.p.capping);
  const int first = item.position(item.row_warp * 16), last = item.position(item.row_warp * 16 + 15);
  if (first_key + TILE_KEYS - 1 <= first && sight_of(last, item.p.window).sees(first_key)) return;  // all see all
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const Sight sight = sight_of(item.position(item.row_of(i)), item.p.window);
#pragma unroll
    for (int t = 0; t < KEY_TILES; t++)
#pragma unroll
      for (int e = 0; e < 2; e++)
        if (!sight.sees(first_key + t * 8 + item.lane % 4 * 2 + e)) scores[t][2 * i + e] = MASKED;
  }
}

// sums = keep * sums + weights * values, for this warp's dims.
DEVICE void add_values(Sums& sums, const float (&keep)[2], const Scores& weights, const unsigned char* values,
                       const Item& item) {
  const unsigned char* row = values + item.lane % 16 * STRIDE + item.lane / 16 * 16;
#pragma unroll
  for (int d = 0; d < SUMS; d++)
#pragma unroll
    for (int e = 0; e < 4; e++) sums[d][e] *= keep[e / 2];
#pragma unroll
  for (int t = 0; t < TILE_KEYS / 16; t++) {
    uint32_t a[4];
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] = pack2<SCALAR>(weights[2 * t + i / 2][i % 2 * 2], weights[2 * t + i / 2][i % 2 * 2 + 1]);
#pragma unroll
    for (int d = 0; d < WARP_PAIRS; d++) {
      const int pair = item.share + d * SHARING;
      if (PAIRS % SHARING && pair >= PAIRS) break;
      uint32_t b[4];  // dims 0-7, keys 0-7 | 8-15, then dims 8-15
      load_matrices_transposed(b, row + t * 16 * STRIDE + pair * 32);
      multiply_add<SCALAR>(sums[2 * d], a, b[0], b[1]);
      multiply_add<SCALAR>(sums[2 * d + 1], a, b[2], b[3]);
    }
  }
}

// The splits before the current one, joined. Sums lie in shared memory, where the queries were; each thread has its own.
struct Total {
  float4* sums;
  float top[2] = {MASKED, MASKED}, total[2] = {0.f, 0.f};
  bool empty = true;

  // part becomes the total with it.
  DEVICE void join_into(Sums& part, Softmax& softmax, float to_log2) {
    softmax.sum();
    if (!empty) {
      Shares shares[2];
#pragma unroll
      for (int i = 0; i < 2; i++) shares[i] = join(top[i], total[i], softmax.top[i], softmax.total[i], to_log2);
#pragma unroll
      for (int d = 0; d < SUMS; d++) {
        const float4 old = sums[d * THREADS + threadIdx.x];
        part[d][0] = shares[0].join(old.x, part[d][0]), part[d][1] = shares[0].join(old.y, part[d][1]);
        part[d][2] = shares[1].join(old.z, part[d][2]), part[d][3] = shares[1].join(old.w, part[d][3]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 2; i++) top[i] = softmax.top[i], total[i] = softmax.total[i];
    }
  }
  DEVICE void close_split(Sums& part, Softmax& softmax, float to_log2) {
    join_into(part, softmax, to_log2);
#pragma unroll
    for (int d = 0; d < SUMS; d++) {
      sums[d * THREADS + threadIdx.x] = make_float4(part[d][0], part[d][1], part[d][2], part[d][3]);
#pragma unroll
      for (int e = 0; e < 4; e++) part[d][e] = 0.f;
    }
    softmax = Softmax{};
    empty = false;
  }
};

DEVICE void store(const Sums& sums, const Total& total, const Item& item) {
  const PagedAttentionParams& p = item.p;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int row = item.row_of(i);
    if (row >= item.work.rows) continue;
    const float* sink = p.sinks ? p.sinks + item.head(row) : nullptr;
    const float scale = normaliser(total.top[i], total.total[i], sink, p.to_log2, p.value_scale);
    SCALAR* out = static_cast<SCALAR*>(p.out) + item.at(row, p.out_stride);
    const int64_t slot = int64_t(item.work.slot + row) * gridDim.y + item.kv_head;
    if (item.work.slot >= 0 && item.share == 0 && item.lane % 4 == 0)
      p.part_tops[slot] = make_float2(total.top[i], total.total[i]);
#pragma unroll
    for (int d = 0; d < SUMS; d++) {
      const int pair = item.share + d / 2 * SHARING, dim = pair * 16 + d % 2 * 8 + item.lane % 4 * 2;
      if (PAIRS % SHARING && pair >= PAIRS) break;
      const float x = sums[d][2 * i], y = sums[d][2 * i + 1];
      if (item.work.slot >= 0) *reinterpret_cast<float2*>(p.part_sums + slot * HEAD_DIM + dim) = make_float2(x, y);
      else *reinterpret_cast<uint32_t*>(out + dim) = pack2<SCALAR>(finished(x, scale), finished(y, scale));
    }
  }
}

DEVICE void attend(const Item& item, unsigned char* shared) {
  const float to_log2 = item.p.to_log2;
  const Source source = item.source();
  float4* const exchange = reinterpret_cast<float4*>(shared + FRONT_BYTES) + item.row_warp * KEY_TILES * 32 + item.lane;
  HalfTiles tiles(source, shared + FRONT_BYTES + SCORE_BYTES);
  copy_query(shared, item);
  tiles.start();
  Query query;
  copy_wait<RING - 2>();
  __syncthreads();
  load_query(query, shared, item);

  Sums sums = {};
  Softmax softmax;
  Total total{reinterpret_cast<float4*>(shared)};
  const int first_tile = source.from / TILE_KEYS * TILE_KEYS;
  for (int key = first_tile; key < source.to; key += TILE_KEYS) {
    const unsigned char* keys = tiles.keys(item.share);
    if (key % SPLIT_KEYS == 0 && key > first_tile) total.close_split(sums, softmax, to_log2);
    float mine[MINE][4] = {};
    score(mine, query, keys, item);
    if (SHARING > 1)
#pragma unroll
      for (int t = 0; t < MINE; t++)
        exchange[(item.share * MINE + t) * 32] = make_float4(mine[t][0], mine[t][1], mine[t][2], mine[t][3]);
    const unsigned char* values = tiles.values(item.share);  // its barrier makes them visible
    Scores scores;
#pragma unroll
    for (int t = 0; t < KEY_TILES; t++) {
      const float4 all = SHARING > 1 ? exchange[t * 32] : *reinterpret_cast<const float4*>(mine[t % MINE]);
      scores[t][0] = all.x, scores[t][1] = all.y, scores[t][2] = all.z, scores[t][3] = all.w;
    }
    cap_and_mask(scores, key, item);
    float keep[2];
    softmax.weigh(scores, to_log2, keep);
    add_values(sums, keep, scores, values, item);
  }
  total.join_into(sums, softmax, to_log2);
  store(sums, total, item);
}

KERNEL(paged_attention, PagedAttentionParams) {
  DYNAMIC_SHARED(shared);
  const int num_work = *p.num_work;
  for (int i = blockIdx.x; i < num_work; i += gridDim.x) {
    attend(Item(p, p.work[i]), shared);
    __syncthreads();  // the next item overwrites what others may still read
  }
}
