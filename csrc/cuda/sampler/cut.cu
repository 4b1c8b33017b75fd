// One level of the search for the last token that stays: by count for top-k, by mass for top-p: sampler.cuh.
// The three levels examine 11, 11 and 10 bits of the keys that begin with `prefix`. A level computes the histogram of these
// bits, in which a token counts 1 or its weight, adds the bins from the highest on until they reach the goal, and appends
// the last bin's bits to the prefix. After the third level the key is complete. Tokens with this key all count the same,
// so the rest of the goal determines how many of them stay.
// top-p's goal is a fraction of the mass that min-p and top-k left. If fewer than top-k tokens are not masked, top-k cuts
// nothing.
// Shared memory: a histogram as two halves of 32 bits, because 64-bit additions in shared memory are slow, and Scratch.
#include "sampler/sampler.cuh"

constexpr int BIN_BITS = 11, BINS = 1 << BIN_BITS, LEVELS = 3, BINS_PER_THREAD = BINS / THREADS;
struct Shared {
  uint32_t low[BINS], high[BINS];
  Scratch scratch;
};
static_assert(SHARED_BYTES == sizeof(Shared) && BINS % THREADS == 0);

struct Level {
  int shift, bits;
  uint32_t prefix;

  DEVICE bool holds(uint32_t key) const { return uint64_t(key) >> (shift + bits) == prefix; }
  DEVICE int bin(uint32_t key) const { return key >> shift & ((1u << bits) - 1); }
};

DEVICE bool takes_part(const SamplerParams& p, const SamplerRow& row, const SamplerState& state) {
  if (row.flags & GREEDY || state.bad) return false;
  if (p.by_mass ? row.top_p >= 1. : row.top_k == 0) return false;
  return p.level == 0 || state.goal > 0;
}

DEVICE void add(Shared& shared, int bin, uint64_t amount) {
  const uint32_t low = uint32_t(amount), old = atomicAdd(&shared.low[bin], low);
  const uint32_t high = uint32_t(amount >> 32) + (old + low < old);
  if (high) atomicAdd(&shared.high[bin], high);
}

// The end of the search: `state.prefix` is a complete key.
DEVICE void finish(const SamplerParams& p, const Weights& weights, SamplerState& state) {
  uint64_t ties = state.goal;
  if (p.by_mass) {
    const uint64_t each = weights(logit_of(state.prefix));
    ties = (ties + each - 1) / each;
  }
  state.cut_key = state.prefix;
  state.cut_ties = uint32_t(ties);
}

// Called by the last block of a row: reads the histogram, and leaves zeros in it.
DEVICE void choose(const SamplerParams& p, const Level& level, const Weights& weights, Scratch& scratch) {
  const SamplerRow& row = p.rows[blockIdx.y];
  SamplerState& state = p.states[blockIdx.y];
  uint64_t* histogram = p.histograms + int64_t(blockIdx.y) * BINS;
  const bool has_ties = p.by_mass && state.cut_key && level.holds(state.cut_key);  // top-k's ties, not in the histogram
  const int first = BINS - 1 - int(threadIdx.x) * BINS_PER_THREAD;
  uint64_t amounts[BINS_PER_THREAD], own = 0, total;
#pragma unroll
  for (int i = 0; i < BINS_PER_THREAD; i++) {
    amounts[i] = histogram[first - i];
    histogram[first - i] = 0;
    if (has_ties && level.bin(state.cut_key) == first - i)
      amounts[i] += state.cut_ties * weights(logit_of(state.cut_key));
    own += amounts[i];
  }
  uint64_t before = block_prefix(own, scratch, total), goal = state.goal;
  if (p.level == 0) goal = p.by_mass ? uint64_t(ceil(row.top_p * double(total))) : row.top_k;
  __syncthreads();  // all threads have read the state, which one thread now changes
  if (goal > total) {
    if (threadIdx.x == 0) state.goal = 0;
    return;
  }
  if (before >= goal || before + own < goal) return;
#pragma unroll
  for (int i = 0; i < BINS_PER_THREAD; i++) {
    const uint64_t after = before + amounts[i];
    if (before < goal && after >= goal) state.goal = goal - before, state.prefix = level.prefix << level.bits | (first - i);
    before = after;
  }
  if (p.level == LEVELS - 1) finish(p, weights, state);
}

KERNEL(sampler_cut, SamplerParams) {
  DYNAMIC_SHARED(bytes);
  Shared& shared = *reinterpret_cast<Shared*>(bytes);
  const SamplerRow& row = p.rows[blockIdx.y];
  const SamplerState& state = p.states[blockIdx.y];
  if (!takes_part(p, row, state)) return;
  const int bits = p.level < LEVELS - 1 ? BIN_BITS : 32 - (LEVELS - 1) * BIN_BITS;
  const Level level = {max(32 - (p.level + 1) * BIN_BITS, 0), bits, p.level ? state.prefix : 0};
  const Weights weights(row, state);
  const uint32_t above = p.by_mass ? state.cut_key : KEY_OF_MASKED;
  for (int bin = threadIdx.x; bin < BINS; bin += THREADS) shared.low[bin] = shared.high[bin] = 0;
  __syncthreads();
  each_token(p.logits + row.source * p.stride, p.vocab, [&](int token, float logit) {
    const uint32_t key = key_of(logit);
    if (key <= above || !level.holds(key)) return;
    const uint64_t amount = p.by_mass ? weights(logit) : 1;
    if (amount) add(shared, level.bin(key), amount);
  });
  __syncthreads();
  for (int bin = threadIdx.x; bin < BINS; bin += THREADS) {
    const uint64_t amount = uint64_t(shared.high[bin]) << 32 | shared.low[bin];
    if (amount) atomicAdd(p.histograms + int64_t(blockIdx.y) * BINS + bin, amount);
  }
  if (is_last_block(p.finished + blockIdx.y, shared.scratch)) choose(p, level, weights, shared.scratch);
}
