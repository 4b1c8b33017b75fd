// XTC: of the tokens that min-p and the cut left, those with at least `xtc_threshold` of the mass are masked, except the
// last of them in rank order: sampler.cuh. Launches: the mass; the last token; masks. Shared memory: Scratch.
// Masks cannot distinguish the tokens at the cut, which have equal weights and of which some stay. If their weight reaches
// the threshold, the last that stays is the last of all: then `state.last` remains 0, and `skipped_ties` leaves the earlier
// ones out of the draw.
#include "sampler/sampler.cuh"

constexpr int ADD_MASS = 0, FIND_LAST = 1, MASK = 2;
static_assert(SHARED_BYTES == sizeof(Scratch));

DEVICE uint64_t place_of(uint32_t key, int token) { return uint64_t(~key) << 32 | uint32_t(token); }  // the last token is greatest

DEVICE void add_mass(const SamplerParams& p, const float* logits, const Weights& weights, SamplerState& state, Scratch& scratch) {
  uint64_t mass = 0, total;
  each_token(logits, p.vocab, [&](int, float logit) { mass += key_of(logit) > state.cut_key ? weights(logit) : 0; });
  block_prefix(mass, scratch, total);
  if (threadIdx.x == 0) atomicAdd(&state.total, total);
}

KERNEL(sampler_exclude, SamplerParams) {
  DYNAMIC_SHARED(shared);
  Scratch& scratch = *reinterpret_cast<Scratch*>(shared);
  const SamplerRow& row = p.rows[blockIdx.y];
  SamplerState& state = p.states[blockIdx.y];
  if (row.flags & GREEDY || state.bad || !state.is_excluding) return;
  float* logits = p.logits + row.source * p.stride;
  const Weights weights(row, state);
  if (p.level == ADD_MASS) return add_mass(p, logits, weights, state, scratch);
  const uint64_t tie = state.cut_key ? weights(logit_of(state.cut_key)) : 0;
  const uint64_t part = uint64_t(ceil(row.xtc_threshold * double(state.total + state.cut_ties * tie)));
  const uint64_t goal = part ? part : 1;  // tokens of weight 0 are not drawn anyway
  const bool has_ties = tie >= goal;
  if (has_ties && p.level == FIND_LAST) return;
  each_token(logits, p.vocab, [&](int token, float logit) {
    const uint32_t key = key_of(logit);
    if (key <= state.cut_key || weights(logit) < goal) return;
    const uint64_t place = place_of(key, token);
    if (p.level == FIND_LAST) atomicMax(&state.last, place);
    else if (place != state.last) logits[token] = logit_of(KEY_OF_MASKED);
  });
  if (has_ties && blockIdx.x == 0 && threadIdx.x == 0) state.skipped_ties = state.cut_ties - 1;
}
