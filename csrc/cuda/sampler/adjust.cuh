// What a request forbids, favours and penalises: sampler/adjust.cu applies it, sampler/count.cu keeps it up to date.
#pragma once
#include "sampler/sampler.cuh"

struct alignas(8) Seen {
  int32_t token, count;  // in the output
};

struct Adjustment {
  const uint32_t* allowed;  // [vocab / 32] bits, the lowest first; or null
  Seen* seen;               // [0].count: how many follow. Or null
  int32_t source;           // which row of the logits
  int32_t index;            // which of the token ids
  int32_t forbidden, num_forbidden;  // where in `words`: token ids
  int32_t biased, num_biased;        // where in `words`: token ids, then as many float biases
  float repetition, frequency, presence;
  int32_t repeating, num_repeating;  // as `biased`, what is subtracted
  int32_t unused;
};

struct AdjustParams {
  float* logits;  // [sources, stride]
  const Adjustment* adjustments;
  const int32_t* words;
  const int64_t* token_ids;
  int64_t stride;
  int32_t vocab;
};
