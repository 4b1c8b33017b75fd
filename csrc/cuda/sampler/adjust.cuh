// The constraints, biases and penalties of requests: sampler/adjust.cu applies them, sampler/count.cu keeps counts current.
#pragma once
#include "sampler/sampler.cuh"

struct alignas(8) Seen {
  int32_t token, count;  // in the output
};

struct Adjustment {
  const uint32_t* allowed;  // [vocab / 32] bits, the lowest first; or null
  Seen* seen;               // [0].count: the number of entries that follow; or null
  int32_t source;           // row of the logits
  int32_t index;            // index in the token ids
  int32_t forbidden, num_forbidden;  // index in `words` of the token ids
  int32_t biased, num_biased;        // index in `words` of the token ids, which as many float biases follow
  float repetition, frequency, presence;
  int32_t repeating, num_repeating;  // like `biased`, with numbers to subtract
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
