// Finds each row's best token, checks that all logits are finite, and computes the random number: sampler.cuh. A greedy row
// is then done. A logit that is not finite makes a row bad, and so does a masked best token; -infinity is allowed in a row
// that may be masked. Shared memory: Scratch.
#include "sampler/sampler.cuh"

static_assert(SHARED_BYTES == sizeof(Scratch));

constexpr uint32_t EXCLUSIONS = 1;  // XTC's stream of random numbers

// 64 bits for (seed, position), by Philox4x32-10: 53 random bits, the same as in the host's sampler, then zeros.
DEVICE uint64_t uniform_of(uint64_t seed, uint64_t position, uint32_t stream) {
  uint32_t c0 = uint32_t(position), c1 = uint32_t(position >> 32), c2 = stream, c3 = 0;
  uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
  for (int round = 0; round < 10; round++) {
    const uint32_t high0 = __umulhi(c0, 0xd2511f53u), low0 = c0 * 0xd2511f53u;
    const uint32_t high2 = __umulhi(c2, 0xcd9e8d57u), low2 = c2 * 0xcd9e8d57u;
    c0 = high2 ^ c1 ^ k0, c1 = low2, c2 = high0 ^ c3 ^ k1, c3 = low0;
    k0 += 0x9e3779b9u, k1 += 0xbb67ae85u;
  }
  return (uint64_t(c0 >> 5) << 26 | c1 >> 6) << 11;
}

// A place in rank order: a greater place is earlier.
DEVICE uint64_t place_of(float logit, int token, bool may_be_masked) {
  const bool is_good = is_finite(logit) || (may_be_masked && key_of(logit) == KEY_OF_MASKED);
  return is_good ? uint64_t(key_of(logit)) << 32 | ~uint32_t(token) : NOT_FINITE;
}

DEVICE uint64_t block_max(uint64_t x, Scratch& scratch) {
#pragma unroll
  for (int distance = 16; distance; distance /= 2) {
    const uint64_t other = __shfl_xor_sync(ALL_LANES, x, distance);
    x = other > x ? other : x;
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch.sums[threadIdx.x / 32] = x;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < WARPS; i++) x = scratch.sums[i] > x ? scratch.sums[i] : x;
  return x;
}

DEVICE void start_row(const SamplerParams& p, uint64_t best) {
  SamplerRow& row = p.rows[blockIdx.y];
  SamplerState state = {};
  state.uniform = uniform_of(row.seed, row.position, 0);
  if (row.xtc_probability > 0.) {
    const uint64_t number = uniform_of(row.seed, row.position, EXCLUSIONS) >> 11;
    state.is_excluding = double(number) * 0x1p-53 < row.xtc_probability;
  }
  state.top = logit_of(uint32_t(best >> 32));
  state.bad = best == NOT_FINITE ? 1 : best >> 32 == KEY_OF_MASKED ? NONE_LEFT : 0;
  p.states[blockIdx.y] = state;
  if (!p.bad) return;  // in a pass for log-probabilities the token is given
  row.position++;
  p.token_ids[row.index] = state.bad ? 0 : ~uint32_t(best);
  p.bad[row.index] = state.bad;
}

KERNEL(sampler_scan, SamplerParams) {
  DYNAMIC_SHARED(shared);
  Scratch& scratch = *reinterpret_cast<Scratch*>(shared);
  const SamplerRow& row = p.rows[blockIdx.y];
  const bool may_be_masked = row.flags & MAY_BE_MASKED;
  uint64_t best = 0;
  each_token(p.logits + row.source * p.stride, p.vocab, [&](int token, float logit) {
    const uint64_t place = place_of(logit, token, may_be_masked);
    best = place > best ? place : best;
  });
  uint64_t* partials = p.partials + int64_t(blockIdx.y) * gridDim.x;
  best = block_max(best, scratch);
  if (threadIdx.x == 0) partials[blockIdx.x] = best;
  if (!is_last_block(p.finished + blockIdx.y, scratch)) return;
  for (int slice = threadIdx.x; slice < gridDim.x; slice += THREADS)
    best = partials[slice] > best ? partials[slice] : best;
  best = block_max(best, scratch);
  if (threadIdx.x == 0) start_row(p, best);
}
