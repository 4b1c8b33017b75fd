// What the sampler's kernels share: a row's parameters and state, ranks and weights as integers, the walk over a row.
//
// Algorithm  A row is cut into slices of SLICE tokens, a block each; the last block of a row to finish puts the slices'
//            findings together. Nothing is sorted. Every sum is one of integers: a token's weight exp((logit - top) /
//            temperature) is held in units of 2^-44 of the best token's, so that a row's result is the same in whatever
//            order threads, atomics and blocks add, and for any SLICE. All float arithmetic is plain IEEE operations,
//            the exponential included: a device and the emulator give the same bits.
//            A weight below 2^-44 counts as none: such a token would come once in 10^13 draws.
// Rank order Higher logit first, equal logits by lower id.
// Launches   [adjust], scan, then for rows that ask: [3 cuts by count], [3 cuts by mass], [3 to exclude],
//            [draw], [count]; for log-probabilities scan, rank, [3 cuts, gather] over raw logits.
// Grid       x: slices, y: rows. Rows that a launch does not concern end at once.
// Bytes      4 * vocab a row and launch; floor at 4.3 TB/s: 15 us a launch for 128 rows of 131,072.
//
// -D SLICE: a multiple of TILE. THREADS, SHARED_BYTES.
#pragma once
#include "device.cuh"

constexpr int WARPS = THREADS / 32, TILE = 256, TILE_PARTS = TILE / 32;
constexpr float WEIGHT_OF_BEST = 0x1p44f;  // at most 2^18 of them are added
constexpr uint32_t KEY_OF_MASKED = 0x007fffffu;  // -infinity
constexpr uint64_t NOT_FINITE = ~0ull;
constexpr uint32_t GREEDY = 1, MAY_BE_MASKED = 2;
static_assert(SLICE % TILE == 0 && THREADS % 32 == 0);

struct SamplerRow {
  int64_t seed;
  int64_t position;  // of the token in the output; the scan counts it on
  double top_p;      // 1: off
  double xtc_probability, xtc_threshold;  // 0: off
  float temperature;
  float log_min_p;  // -infinity: off
  int32_t top_k;    // 0: off
  uint32_t flags;
  int32_t source;  // which row of the logits
  int32_t index;   // which of the token ids
  int64_t list;    // where its gathered tokens begin
};

struct SamplerState {
  uint64_t uniform;  // the row's random number of [0, 1) in units of 2^-64
  uint64_t goal;     // of a descent: what the tokens from `prefix` on have still to bring
  uint64_t total;    // mass of all tokens; for XTC, of those above the cut
  uint64_t rank;     // tokens before the chosen one
  uint64_t last;     // place of the only one that stays of those that XTC means
  float top;
  float chosen;  // logit of the chosen token
  uint32_t bad;
  uint32_t cut_key;   // keys above it stay, and
  uint32_t cut_ties;  // so many that are equal to it, lowest ids first
  uint32_t prefix;
  uint32_t gathered;
  uint32_t is_excluding;
  uint32_t skipped_ties;  // of the cut's, lowest ids first
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

// Ascends with the logit; -0 and 0 are equal. That of a number is above 0.
DEVICE uint32_t key_of(float logit) {
  const uint32_t bits = __float_as_uint(logit + 0.f);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
DEVICE float logit_of(uint32_t key) { return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key); }
DEVICE bool is_finite(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }

// exp((logit - top) / temperature) in units of 1 / WEIGHT_OF_BEST, below; 0 if that is less than min-p of the best.
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

  // The correctly rounded quotient, from a correctly rounded inverse and two exact remainders. Differences that weigh
  // nothing are made finite.
  DEVICE float exponent(float logit) const {
    const float difference = fmaxf(logit - top, -256.f);
    float quotient = difference * inverse;
    quotient = fmaf(fmaf(-quotient, temperature, difference), inverse, quotient);
    return fmaf(fmaf(-quotient, temperature, difference), inverse, quotient);
  }

  DEVICE static float power(float x) {  // e^x, -64 <= x <= 0
    const float halvings = rintf(x * LOG2_E);
    float rest = fmaf(halvings, -0.693359375f, x);  // ln 2 in two parts, of which the first has 9 bits
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

// ---- the walk ----------------------------------------------------------------------------------------------------

// visit(token, logit) for each of this thread's tokens of the block's slice.
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

// A lane's tokens of a tile: token(i) = tile * TILE + i * 32 + lane; -infinity where there is none.
DEVICE void load_tile(float (&part)[TILE_PARTS], const float* logits, int tile, int vocab) {
#pragma unroll
  for (int i = 0; i < TILE_PARTS; i++) {
    const int token = tile * TILE + i * 32 + threadIdx.x % 32;
    part[i] = token < vocab ? logits[token] : logit_of(KEY_OF_MASKED);
  }
}

// ---- what threads do together ------------------------------------------------------------------------------------

struct Scratch {
  uint64_t sums[WARPS];
  uint64_t left;  // written by its owner for the others
  uint32_t skipped, ties;
  int32_t place;
};

DEVICE uint64_t warp_prefix(uint64_t x) {  // up to and including this lane's
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
// The sum of the x of the threads before this one, and of all.
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

// Whether all other blocks of the row are through; then what they wrote to global memory can be read.
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
