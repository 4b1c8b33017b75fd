// Shared by the sampler's kernels: a row's parameters and state, ranks and weights as integers, loops over a row.
//
// Algorithm  A row is divided into slices of SLICE tokens, one per block; the last block of a row to finish combines the
//            slices' results. Nothing is sorted. All sums are sums of integers: a token's weight exp((logit - top) /
//            temperature) is stored in units of 2^-44 of the best token's weight, so a row's result does not depend on the
//            order in which threads, atomics and blocks add, nor on SLICE. All float arithmetic, the exponential included,
//            consists of plain IEEE operations: a device and the emulator give the same bits.
//            A weight below 2^-44 counts as 0: such a token would be drawn once in 10^13 draws.
// Rank order Higher logit first, equal logits by lower id.
// Launches   [adjust], scan, then if any row needs them: [3 cuts by count], [3 cuts by mass], [3 to exclude],
//            [draw], [count]; for log-probabilities scan, rank, [3 cuts, gather] over raw logits.
// Grid       x: slices, y: rows. The blocks of rows that do not need a launch end at once.
// Bytes      4 * vocab per row and launch; floor at 4.3 TB/s: 15 us per launch for 128 rows of 131,072.
//
// -D SLICE: a multiple of TILE. THREADS, SHARED_BYTES.
#pragma once
#include "device.cuh"

constexpr int WARPS = THREADS / 32, TILE = 256, TILE_PARTS = TILE / 32;
constexpr float WEIGHT_OF_BEST = 0x1p44f;  // at most 2^19 of them are added
constexpr uint32_t KEY_OF_MASKED = 0x007fffffu;  // -infinity
constexpr uint64_t NOT_FINITE = ~0ull;
constexpr uint32_t GREEDY = 1, MAY_BE_MASKED = 2;
constexpr uint32_t NONE_LEFT = 2;  // in `bad`, where 1 is a logit that is not finite: the best one is masked
static_assert(SLICE % TILE == 0 && THREADS % 32 == 0);

struct SamplerRow {
  int64_t seed;
  int64_t position;  // of the token in the output; the scan increments it
  double top_p;      // 1: off
  double xtc_probability, xtc_threshold;  // 0: off
  float temperature;
  float log_min_p;  // -infinity: off
  int32_t top_k;    // 0: off
  uint32_t flags;
  int32_t source;  // row of the logits
  int32_t index;   // index in the token ids
  int64_t list;    // where its gathered tokens begin
};

struct SamplerState {
  uint64_t uniform;  // the row's random number in [0, 1), in units of 2^-64
  uint64_t goal;     // of a cut: the count or mass that tokens with `prefix` must still reach
  uint64_t total;    // mass of all tokens; for XTC, of those above the cut
  uint64_t rank;     // tokens before the chosen one
  uint64_t last;     // place of the token that XTC keeps of those that reach its threshold
  float top;
  float chosen;  // logit of the chosen token
  uint32_t bad;
  uint32_t cut_key;   // tokens with greater keys stay
  uint32_t cut_ties;  // the number of tokens with this key that stay, lowest ids first
  uint32_t prefix;
  uint32_t gathered;
  uint32_t is_excluding;
  uint32_t skipped_ties;  // the number of ties that XTC excludes, lowest ids first
  uint32_t unused;
};

struct SamplerParams {
  float* logits;           // [sources, stride]
  SamplerRow* rows;        // [rows]
  SamplerState* states;    // [rows]
  uint64_t* partials;      // [rows, slices]
  uint64_t* histograms;    // [rows, BINS], zero between launches
  uint64_t* tiles;         // [rows, tiles]
  uint32_t* finished;      // [rows] blocks, zero between launches
  int64_t* token_ids;      // by index
  uint8_t* bad;            // by index, or null
  uint64_t* lists;
  int64_t stride;
  int32_t vocab;
  int32_t level;
  int32_t by_mass;
};

// ---- ranks and weights as integers -------------------------------------------------------------------------------

// An integer that ascends with the logit; -0 and 0 are equal. The key of a number is above 0.
DEVICE uint32_t key_of(float logit) {
  const uint32_t bits = __float_as_uint(logit + 0.f);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
DEVICE float logit_of(uint32_t key) { return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key); }
DEVICE bool is_finite(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }

// exp((logit - top) / temperature) in units of 1 / WEIGHT_OF_BEST, rounded down; 0 if it is below min-p times the best.
class Weights {
 public:
  DEVICE Weights(const SamplerRow& row, const SamplerState& state)
      : top(state.top), temperature(row.temperature), inverse(1.f / row.temperature), log_min_p(row.log_min_p) {}

  DEVICE uint64_t operator()(float logit) const {
    const float x = exponent(logit);
    return x < log_min_p ? 0 : uint64_t(power(fmaxf(x, -64.f)) * WEIGHT_OF_BEST);
  }

 private:
  float top, temperature, inverse, log_min_p;

  // The correctly rounded quotient, from a correctly rounded inverse and two exact remainders. Differences whose weight is
  // 0 are made finite.
  DEVICE float exponent(float logit) const {
    const float difference = fmaxf(logit - top, -256.f);
    float quotient = difference * inverse;
    quotient = fmaf(fmaf(-quotient, temperature, difference), inverse, quotient);
    return fmaf(fmaf(-quotient, temperature, difference), inverse, quotient);
  }

  DEVICE static float power(float x) {  // e^x, -64 <= x <= 0
    const float halvings = rintf(x * LOG2_E);
    float rest = fmaf(halvings, -0.693359375f, x);  // ln 2 in two parts, the first with 9 bits
    rest = fmaf(halvings, 2.12194440e-4f, rest);
    float sum = 1.f / 5040;
    sum = fmaf(sum, rest, 1.f / 720);
    sum = fmaf(sum, rest, 1.f / 120);
    sum = fmaf(sum, rest, 1.f / 24);
    sum = fmaf(sum, rest, 1.f / 6);
    sum = fmaf(sum, rest, 0.5f);
    sum = fmaf(sum, rest, 1.f);
    sum = fmaf(sum, rest, 1.f);
    return sum * __uint_as_float(uint32_t(127 + int(halvings)) << 23);
  }
};

// ---- loops over a row --------------------------------------------------------------------------------------------

// Calls visit(token, logit) for each of this thread's tokens of the block's slice.
template <class Visit>
DEVICE void each_token(const float* logits, int vocab, Visit visit) {
  constexpr int AT_ONCE = 8;
  const int from = blockIdx.x * SLICE, to = min(from + SLICE, vocab);
  for (int start = from + threadIdx.x; start < to; start += AT_ONCE * THREADS) {
    float part[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) part[i] = start + i * THREADS < to ? logits[start + i * THREADS] : 0.f;
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++)
      if (start + i * THREADS < to) visit(start + i * THREADS, part[i]);
  }
}

DEVICE int tiles_of(int vocab) { return (vocab + TILE - 1) / TILE; }

// A lane's logits of a tile: part[i] is that of token tile * TILE + i * 32 + lane; -infinity beyond the vocabulary.
DEVICE void load_tile(float (&part)[TILE_PARTS], const float* logits, int tile, int vocab) {
#pragma unroll
  for (int i = 0; i < TILE_PARTS; i++) {
    const int token = tile * TILE + i * 32 + threadIdx.x % 32;
    part[i] = token < vocab ? logits[token] : logit_of(KEY_OF_MASKED);
  }
}

// ---- operations of warps and blocks ------------------------------------------------------------------------------

struct Scratch {
  uint64_t sums[WARPS];
  uint64_t left;  // written by one thread for the others
  uint32_t skipped, ties;
  int32_t place;
};

DEVICE uint64_t warp_prefix(uint64_t x) {  // the sum over the lanes up to and including this one
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const uint64_t lower = __shfl_up_sync(ALL_LANES, x, distance);
    if (int(threadIdx.x % 32) >= distance) x += lower;
  }
  return x;
}
DEVICE uint64_t warp_total(uint64_t x) {
#pragma unroll
  for (int distance = 16; distance; distance /= 2) x += __shfl_xor_sync(ALL_LANES, x, distance);
  return x;
}
// The sum of x over the threads before this one; `total` becomes the sum over all.
DEVICE uint64_t block_prefix(uint64_t x, Scratch& scratch, uint64_t& total) {
  const int warp = threadIdx.x / 32;
  const uint64_t sum = warp_prefix(x);
  __syncthreads();  // the sums of an earlier call have been read
  if (threadIdx.x % 32 == 31) scratch.sums[warp] = sum;
  __syncthreads();
  uint64_t before = sum - x;
  total = 0;
#pragma unroll
  for (int i = 0; i < WARPS; i++) {
    if (i < warp) before += scratch.sums[i];
    total += scratch.sums[i];
  }
  return before;
}

// Whether all other blocks of the row have finished; if so, their writes to global memory can be read.
DEVICE bool is_last_block(uint32_t* finished, Scratch& scratch) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    scratch.place = atomicAdd(finished, 1u) == gridDim.x - 1;
    if (scratch.place) *finished = 0;
  }
  __syncthreads();
  __threadfence();
  return scratch.place;
}
