// out = softmax(scale * Q K^T, masked) V over the paged cache, for decode steps, chunks of prompts and verification alike.
//
// Grid (any, kv_heads): blocks loop over a list of work that plan.cu wrote; an item is up to 16 * ROW_WARPS rows of
// one request (row = token * GROUP + query head) for one KV head. Keys pass through shared memory in tiles of 64; scores,
// weights and sums stay in the registers of mma.m16n8k16.
//
// Every shape gives the same bits. A row's scores are whole products (over dims in steps of 16), its weights and their
// totals are one function of the tile's scores, and its sums add keys in steps of 16, whichever warp computes them. Tiles
// begin at multiples of 64. Sums start from 0 at multiples of 512, and these parts are joined in order: by this kernel in
// shared memory if a block has all keys, by merge.cu if there is a block per split. Masked keys leave top, total and sums
// unchanged. The shapes divide the work differently: for decode (ROW_WARPS 1, SHARING 4) four warps share 16 rows, and each
// scores 16 keys of a tile and sums a quarter of the dims; for prefill (4, 1) each warp has its own 16 rows; with 256 dims
// (4, 2), and with more than 256 (2, 4). The cost: in decode two more barriers per tile than with a softmax per warp, and 2.5 KB of shared memory; in
// prefill one pass over 4 * HEAD_DIM bytes of shared memory per row every 512 keys, about 4 % [E], in the queries' space.
// Heads of more than 256 dims have their queries in shared memory and the joined sums in registers.
//
// Floors on an H200, bf16: decode reads 4 * kv_heads * HEAD_DIM bytes per cached token (batch 32 of 4,096 tokens, 8 x 128:
// 125 us at 4.3 TB/s); with two blocks per multiprocessor up to 170 KB are in flight, about 40 are needed. Causal prefill
// takes 2 * heads * HEAD_DIM * queries * keys operations (8,192 tokens, 32 x 128: 0.70 ms at 790 TFLOP/s); with 16 rows
// per warp, matrix loads from shared memory limit it to 475 TFLOP/s [E]. On an H100 decode of large batches reads as fast as
// a copy, and prefill reaches 204 TFLOP/s: two warps per scheduler do not hide their latencies (docs/cuda.md).
//
// Registers, decode / prefill (NVRTC 13.0; no stack, no spills anywhere). The compile gate compares this table with what
// every variant compiles to; HAS_ALIBI takes up to 9 more registers, IS_BIDIRECTIONAL up to 2, ATTENTION_CHUNK up to 3.
// SCALAR is bf16, and fp16 in the row of fp8 with 64 dims.
//
//   KV    HEAD_DIM   sm_80       sm_89       sm_90a      sm_100       shared KB on sm_90a, blocks per multiprocessor
//   bf16     64     87 / 168    87 / 168    95 / 172   114 / 215    61 / 52, 2
//   bf16     80    112 / 182   115 / 182   118 / 192   145 / 232    77 / 64, 2
//   bf16     96    117 / 200   118 / 200   124 / 200   154 / 236    89 / 76, 2
//   bf16    128    123 / 211   117 / 216   126 / 221   160 / 255    113 / 100, 2
//   bf16    256    186 / 238   181 / 181   198 / 243   208 / 254    85 / 206, 2 / 1
//   bf16    512    241 / 241   241 / 241   246 / 245   251 / 240   214 / 168, 1
//   fp8      64     89 / 168   119 / 168   117 / 167   109 / 185    56 / 45, 2
//   fp8     128    122 / 243   119 / 215   122 / 219   146 / 222    100 / 85, 2
//   fp8     256    187 / 240   183 / 183   187 / 251   212 / 251    103 / 175, 2 / 1
//
// -D SCALAR: bf16 or fp16. KV: SCALAR or fp8. HEAD_DIM: a multiple of 16. GROUP: query heads per KV head. BLOCK_SIZE.
// HAS_ALIBI, IS_BIDIRECTIONAL: 0 or 1; with the latter a token attends to all keys of its request.
// ATTENTION_CHUNK: a token attends to keys from its last multiple on; 0: none. ROW_WARPS, SHARING: the shape. RING: half
// tiles in shared memory. THREADS, SHARED_BYTES.
#include "attention/query.cuh"
#include "attention/tiles.cuh"
#include "attention/total.cuh"

constexpr bool IS_WIDE = HEAD_DIM > 256;
constexpr int SUMS = 2 * WARP_PAIRS<PAIRS>, TOTAL_BYTES = IS_WIDE ? 0 : SUMS * THREADS * 16;
constexpr int FRONT_BYTES = QUERY_BYTES > TOTAL_BYTES ? QUERY_BYTES : TOTAL_BYTES;
static_assert(THREADS == 32 * ROW_WARPS * SHARING && (RING > 1 || IS_WIDE));
static_assert(SHARED_BYTES == FRONT_BYTES + EXCHANGE_BYTES + RING * SLOT_BYTES + WIDE_BYTES + PLACES_BYTES);

// Where a warp has the queries and the joined sums of its rows.
template <bool WIDE>
struct Held {
  using Query = KeptQuery;
  using Total = SharedTotal<PAIRS>;  // where the queries were
};
template <>
struct Held<true> {
  using Query = SharedQuery;
  using Total = KeptTotal<PAIRS>;
};
using Sums = SumsOf<PAIRS>;
using Query = Held<IS_WIDE>::Query;
using Total = Held<IS_WIDE>::Total;

// Adds ALiBi's bias to the scores of this warp's keys, which begin at `first_key`.
DEVICE void slant(Scores& scores, int first_key, const Item& item) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int row = item.row_of(i), key = first_key + item.lane % 4 * 2 - item.position(row);
    const float slope = item.p.slopes[item.head(row)];
#pragma unroll
    for (int t = 0; t < 2 * MINE; t++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
        float& score = scores[t][2 * i + e];
        if (item.p.cap == 0.f) score *= item.p.before;
        score = fmaf(slope, float(key + t * 8 + e), score);
      }
  }
}

// Caps, slants and masks the scores; `first_key` is the first key of this warp's part.
DEVICE void shape_and_mask(Scores& scores, int first_key, const Item& item) {
  if (item.p.cap > 0.f)
#pragma unroll
    for (int t = 0; t < 2 * MINE; t++)
#pragma unroll
      for (int e = 0; e < 4; e++) scores[t][e] = capped(scores[t][e], item.p.before, item.p.cap);
  if (HAS_ALIBI) slant(scores, first_key, item);
  const int first = item.last_seen(item.row_warp * 16), last = item.last_seen(item.row_warp * 16 + 15);
  if (first_key + WARP_KEYS - 1 <= first && item.sight(last).sees(first_key)) return;  // every row attends to every key
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const Sight sight = item.sight(item.last_seen(item.row_of(i)));
#pragma unroll
    for (int t = 0; t < 2 * MINE; t++)
#pragma unroll
      for (int e = 0; e < 2; e++)
        if (!sight.sees(first_key + t * 8 + item.lane % 4 * 2 + e)) scores[t][2 * i + e] = MASKED;
  }
}

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
  Exchange exchange(shared + FRONT_BYTES, item.row_warp, item.share, item.lane);
  HalfTiles tiles(source, shared + FRONT_BYTES + EXCHANGE_BYTES);
  copy_query(shared, item);
  tiles.start();
  copy_wait<PENDING>();
  __syncthreads();
  const Query query(query_of(shared, item));

  Sums sums = {};
  Softmax<MINE> softmax;
  Total total(shared);
  const int first_tile = source.from / TILE_KEYS * TILE_KEYS;
  for (int key = first_tile; key < source.to; key += TILE_KEYS) {
    const unsigned char* keys = tiles.keys(item.share);
    if (key % SPLIT_KEYS == 0 && key > first_tile) total.close_split(sums, softmax, exchange, to_log2);
    Scores scores = {};
    score(scores, query, keys, item);
    shape_and_mask(scores, key + item.share * WARP_KEYS, item);
    Weights weights;
    float keep[2];
    weigh(weights, scores, keep, softmax, exchange, to_log2);
    const unsigned char* values = tiles.values(item.share);  // its barrier makes the weights of other warps visible
    add_values<PAIRS>(sums, keep, weights, exchange, values, item);
  }
  store(total.finish(sums, softmax, exchange, to_log2), total, item);
}

KERNEL(paged_attention, PagedAttentionParams) {
  DYNAMIC_SHARED(shared);
  const int num_work = *p.num_work;
  for (int i = blockIdx.x; i < num_work; i += gridDim.x) {
    attend(Item(p, p.work[i]), shared);
    __syncthreads();  // the next item overwrites memory that other warps may still read
  }
}
