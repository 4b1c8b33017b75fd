// Applies the constraints, biases and penalties of requests to logits, in place and before the scan: sampler.cuh.
// Order: allowed tokens, forbidden tokens, biases, penalties, repetitions. Logits that are not finite become NaN and stay
// NaN, so that the scan finds them. Grid: x slices, y adjustments. Bytes: 4 * vocab read; changed logits written.
#include "sampler/adjust.cuh"

static_assert(SHARED_BYTES == 0);

DEVICE float penalised(float logit, int count, const Adjustment& a) {
  float value = logit > 0.f ? logit / a.repetition : logit * a.repetition;
  value -= a.frequency * float(count);
  return value - a.presence * (count > 0 ? 1.f : 0.f);
}

KERNEL(sampler_adjust, AdjustParams) {
  const Adjustment& a = p.adjustments[blockIdx.y];
  float* logits = p.logits + a.source * p.stride;
  const float masked = logit_of(KEY_OF_MASKED), nothing = __uint_as_float(0x7fc00000u);
  const int from = blockIdx.x * SLICE, to = min(from + SLICE, p.vocab);
  each_token(logits, p.vocab, [&](int token, float logit) {
    if (!is_finite(logit)) logits[token] = nothing;
    else if (a.allowed && !(a.allowed[token / 32] >> token % 32 & 1)) logits[token] = masked;
  });
  __syncthreads();
  const auto is_here = [&](int token) { return token >= from && token < to; };
  for (int i = threadIdx.x; i < a.num_forbidden; i += THREADS) {
    const int token = p.words[a.forbidden + i];
    if (is_here(token) && logits[token] == logits[token]) logits[token] = masked;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < a.num_biased; i += THREADS) {
    const int token = p.words[a.biased + i];
    if (is_here(token)) logits[token] += __uint_as_float(p.words[a.biased + a.num_biased + i]);
  }
  __syncthreads();
  for (int i = threadIdx.x; a.seen && i < a.seen[0].count; i += THREADS) {
    const Seen seen = a.seen[1 + i];
    if (is_here(seen.token)) logits[seen.token] = penalised(logits[seen.token], seen.count, a);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < a.num_repeating; i += THREADS) {
    const int token = p.words[a.repeating + i];
    if (is_here(token)) logits[token] -= __uint_as_float(p.words[a.repeating + a.num_repeating + i]);
  }
}
