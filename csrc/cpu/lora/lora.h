// The part of the C ABI for LoRA adapters: y += scale * B (A x) for the rows of a step that have an adapter. lora.cpp.
#pragma once
#include <cstdint>

#include "exports.h"

// What one adapter adds to one projection.
struct LoraPart {
  const void* a;  // [rank, rounded up to RANK_BLOCK, inputs]; of an embedding [inputs, rank]
  const void* b;  // [ceil(outputs / 64)][rank][64], zeros past the last output
  int32_t rank;   // 0: the adapter adds nothing to this projection
  float scale;
};

// The rows of a step, in groups of at most GROUP_ROWS rows with the same adapter: the number of groups; a (place, first,
// count) for each; from 1 + 3 * rows on, the rows in the order of the groups. Rows without an adapter are in no group.
struct LoraParams {
  void* y;                // expand: [rows, outputs] of y_dtype
  const void* x;          // shrink: [rows, inputs] of `dtype`; look up: [rows] int64
  float* sums;            // [shares, rows, parts, max_rank]: A x; shrink and look up write the only share
  float* early;           // announce, expand: [rows, outputs] for what the product computes of expand; null: none of it
  const int32_t* groups;  // [1 + 4 * rows]
  const LoraPart* table;  // [places, parts]
  const int32_t* starts;  // [parts + 1]: part p adds to the outputs starts[p]..starts[p + 1]
  int64_t x_stride, y_stride;
  int32_t rows, parts, inputs, max_rank;  // max_rank: a multiple of RANK_BLOCK
  int32_t segments;       // of the inputs: 1, 2 or 4 equal parts, summed as in gemm/segments.h
  int32_t shares;         // expand: of as many ranks, added as in sum_parts
  int32_t dtype, y_dtype;  // of a, b and x; of y
};
API void lora_announce(Pool*, const LoraParams*);  // the next product computes some of shrink, which must follow, and of expand
API void lora_shrink(Pool*, const LoraParams*);
API void lora_look_up(Pool*, const LoraParams*);
API void lora_expand(Pool*, const LoraParams*);
