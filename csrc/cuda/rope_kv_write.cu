// Splits a token's projection into queries, keys and values. Each head's query and key is normalised (if there are norms),
// then rotated: elements i and i + HEAD_DIM / 2 are a pair. A norm scales to a mean square of 1; if IS_CENTRED, it first
// subtracts the mean. With NORMALISES_VALUES values are normalised, too, without weights. Queries go to `query`, keys and
// values to the token's slot of the cache; without KV_HEADS there are queries alone. A token with a negative slot pads a CUDA
// graph's batch, and none of its results are written.
//
// One block per token. A head belongs to LANES lanes, each with one pack of 8 of either half and so with whole pairs; the
// lanes beyond HEAD_DIM / 16 are idle. Results are computed in float and rounded once, when they are stored. A head's sum
// of squares adds within a lane (first half, then second), then over the lanes.
// Bytes per token: 4 * (HEADS + 2 * KV_HEADS) * HEAD_DIM with a 16-bit cache; floor at 4.3 TB/s with 32 + 2 * 8 heads of
// 128: 47 us for 8,192 tokens. The angles, 4 * HEAD_DIM bytes per position, are read by all heads and stay in L1 and L2.
//
// -D SCALAR: bf16 or fp16. CACHED: SCALAR or fp8. HEAD_DIM: a multiple of 16, at most 512. HEADS, KV_HEADS, BLOCK_SIZE,
// IS_CENTRED, NORMALISES_VALUES: 0 or 1. THREADS, SHARED_BYTES.
#include "packs.cuh"

struct RopeKvWriteParams {
  void* query;               // [tokens, HEADS, HEAD_DIM]
  const void* projected;     // [tokens, (HEADS + 2 * KV_HEADS) * HEAD_DIM]: queries, keys, values
  const float* query_norm;   // weights: [HEAD_DIM] of all heads, or [HEADS, HEAD_DIM]; or null
  const float* key_norm;     // likewise
  const float* query_bias;   // likewise, with IS_CENTRED
  const float* key_bias;
  const float* angles;       // [positions, HEAD_DIM]: cosines of the pairs, then sines
  const float* query_scales;  // [positions], factors of rotated queries; or null
  const int64_t* positions;  // [tokens]
  const int64_t* slots;      // [tokens] = block * BLOCK_SIZE + offset, or negative
  void* keys;                // [blocks, KV_HEADS, BLOCK_SIZE, HEAD_DIM] CACHED
  void* values;              // likewise
  int norm_packs;  // packs from a head's norm weights to the next head's: 0 or HEAD_DIM / 8
  float eps;
  float key_factor, value_factor;  // of keys and values, before they are stored
};

constexpr int power_of_two_from(int x) {
  int power = 1;
  while (power < x) power *= 2;
  return power;
}
constexpr int PACKS = HEAD_DIM / 8, HALF_PACKS = PACKS / 2, ALL_HEADS = HEADS + 2 * KV_HEADS;
constexpr int STORED_HEADS = KV_HEADS > 0 ? KV_HEADS : 1;  // divides
constexpr int LANES = power_of_two_from(HALF_PACKS), HEADS_OF_WARP = 32 / LANES, WARPS = THREADS / 32;
static_assert(HEAD_DIM % 16 == 0 && HALF_PACKS <= 32 && SHARED_BYTES == 0);

DEVICE float sum_of_head(float x) {
#pragma unroll
  for (int distance = 1; distance < LANES; distance *= 2) x += __shfl_xor_sync(ALL_LANES, x, distance);
  return x;
}

// Subtracts the mean of a head from its elements; its sum has the order of the squares' sum. All lanes of a warp call it;
// those without a norm keep their elements.
DEVICE void centre(float (&low)[8], float (&high)[8], bool has_norm) {
  float sum = 0.f;
#pragma unroll
  for (int e = 0; e < 8; e++) sum += low[e];
#pragma unroll
  for (int e = 0; e < 8; e++) sum += high[e];
  const float all = sum_of_head(sum), mean = has_norm ? all / HEAD_DIM : 0.f;
#pragma unroll
  for (int e = 0; e < 8; e++) low[e] -= mean, high[e] -= mean;
}

// Normalises a head. All lanes of a warp call it; those with a null `weight` keep their elements, unless they are `bare`.
DEVICE void normalise(float (&low)[8], float (&high)[8], bool bare, const float* weight, const float* bias, int pack,
                      float eps) {
  float squares = 0.f;
#pragma unroll
  for (int e = 0; e < 8; e++) squares = fmaf(low[e], low[e], squares);
#pragma unroll
  for (int e = 0; e < 8; e++) squares = fmaf(high[e], high[e], squares);
  const float scale = 1.f / sqrtf(sum_of_head(squares) / HEAD_DIM + eps);
  if (bare)
#pragma unroll
    for (int e = 0; e < 8; e++) low[e] *= scale, high[e] *= scale;
  if (!weight) return;
  float low_weight[8], high_weight[8];
  load8<float>(low_weight, weight, pack);
  load8<float>(high_weight, weight, HALF_PACKS + pack);
#pragma unroll
  for (int e = 0; e < 8; e++) {
    low[e] = low[e] * scale * low_weight[e];
    high[e] = high[e] * scale * high_weight[e];
  }
  if (!IS_CENTRED || !bias) return;
  load8<float>(low_weight, bias, pack);
  load8<float>(high_weight, bias, HALF_PACKS + pack);
#pragma unroll
  for (int e = 0; e < 8; e++) low[e] += low_weight[e], high[e] += high_weight[e];
}

DEVICE void turn(float (&low)[8], float (&high)[8], const float (&cosine)[8], const float (&sine)[8]) {
#pragma unroll
  for (int e = 0; e < 8; e++) {
    const float was_low = low[e], was_high = high[e];
    low[e] = was_low * cosine[e] - was_high * sine[e];
    high[e] = was_high * cosine[e] + was_low * sine[e];
  }
}

template <class T>
DEVICE void put_head(void* to, int64_t row, int pack, float (&low)[8], float (&high)[8], float factor) {
#pragma unroll
  for (int e = 0; e < 8; e++) low[e] *= factor, high[e] *= factor;
  store8<T>(to, row * PACKS + pack, low);
  store8<T>(to, row * PACKS + HALF_PACKS + pack, high);
}

KERNEL(rope_kv_write, RopeKvWriteParams) {
  const int64_t token = blockIdx.x, slot = p.slots[token];
  if (slot < 0) return;
  const int warp = threadIdx.x / 32, pack = threadIdx.x % LANES;
  const bool idle = pack >= HALF_PACKS;
  const float query_factor = p.query_scales ? p.query_scales[p.positions[token]] : 1.f;
  float cosine[8], sine[8];
  if (!idle) {
    const int64_t angles = p.positions[token] * PACKS;
    load8<float>(cosine, p.angles, angles + pack);
    load8<float>(sine, p.angles, angles + HALF_PACKS + pack);
  }
  for (int first = warp * HEADS_OF_WARP; first < ALL_HEADS; first += WARPS * HEADS_OF_WARP) {
    const int head = first + threadIdx.x % 32 / LANES;
    const bool present = !idle && head < ALL_HEADS, is_query = head < HEADS, is_value = head >= HEADS + KV_HEADS;
    float low[8] = {}, high[8] = {};
    if (present) {
      const int64_t from = (token * ALL_HEADS + head) * PACKS;
      load8<SCALAR>(low, p.projected, from + pack);
      load8<SCALAR>(high, p.projected, from + HALF_PACKS + pack);
    }
    if (NORMALISES_VALUES || p.query_norm || p.key_norm) {
      const bool has_norm = present && !is_value;
      const int at = pack + (is_query ? head : head - HEADS) * p.norm_packs;
      if (IS_CENTRED) centre(low, high, has_norm);
      normalise(low, high, NORMALISES_VALUES && is_value, has_norm ? is_query ? p.query_norm : p.key_norm : nullptr,
                is_query ? p.query_bias : p.key_bias, at, p.eps);
    }
    if (!present) continue;
    if (!is_value) turn(low, high, cosine, sine);
    const int kv_head = (head - HEADS) % STORED_HEADS;
    const int64_t row = (slot / BLOCK_SIZE * STORED_HEADS + kv_head) * BLOCK_SIZE + slot % BLOCK_SIZE;
    if (is_query)
      put_head<SCALAR>(p.query, token * HEADS + head, pack, low, high, query_factor);
    else if (is_value)
      put_head<CACHED>(p.values, row, pack, low, high, p.value_factor);
    else
      put_head<CACHED>(p.keys, row, pack, low, high, p.key_factor);
  }
}
