// The terms of the log-probability of a row's chosen token, from raw logits: the mass of all tokens, the number of tokens
// before the chosen one in rank order, and its logit: sampler.cuh. Shared memory: Scratch.
#include "sampler/sampler.cuh"

static_assert(SHARED_BYTES == sizeof(Scratch));

KERNEL(sampler_rank, SamplerParams) {
  DYNAMIC_SHARED(shared);
  Scratch& scratch = *reinterpret_cast<Scratch*>(shared);
  const SamplerRow& row = p.rows[blockIdx.y];
  SamplerState& state = p.states[blockIdx.y];
  if (state.bad) return;
  const float* logits = p.logits + row.source * p.stride;
  const int chosen = int(p.token_ids[row.index]);
  const uint32_t key = key_of(logits[chosen]);
  const Weights weights(row, state);
  uint64_t mass = 0, earlier = 0;
  each_token(logits, p.vocab, [&](int token, float logit) {
    const uint32_t other = key_of(logit);
    earlier += other > key || (other == key && token < chosen);
    mass += weights(logit);
  });
  uint64_t total, rank;
  block_prefix(mass, scratch, total);
  block_prefix(earlier, scratch, rank);
  if (threadIdx.x) return;
  atomicAdd(&state.total, total);
  atomicAdd(&state.rank, rank);
  if (blockIdx.x == 0) state.chosen = logits[chosen];
}
