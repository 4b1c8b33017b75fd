// The sampler's part of the C ABI (api.h): passes over logits [rows, vocab] float, rows `stride` apart. See sampling.cpp.
#pragma once
#include "exports.h"

struct ScanParams {
  const float* logits;
  int64_t* best;    // [rows], the lowest id of the highest logit
  uint8_t* finite;  // [rows], whether all logits are
  int64_t stride;
  int32_t rows, vocab;
};
API void scan_logits(Pool*, const ScanParams*);

// Sets the logits that a row's mask does not allow to -infinity (bit i % 32 of word i / 32 is that of token i), and finds
// the best of the others.
struct MaskParams {
  float* logits;
  const int64_t* indices;  // [count]: each one's row of the logits, distinct
  const uint32_t* masks;   // [masks, (vocab + 31) / 32]
  const int64_t* mask_of;  // [count]: each one's place in the masks
  int64_t* best;           // [count], the lowest id among equals; -1 if no token is allowed
  int64_t stride;
  int32_t count, vocab;
};
API void mask_logits(Pool*, const MaskParams*);

// Draws from the tokens that the masks, then min-p, top-k, top-p and XTC keep. Logits may be -infinity.
struct DrawParams {
  const float* logits;
  const int64_t *indices, *rows;          // [count]: the row of the logits for each draw, and its entry of the columns
  const float *temperature, *log_min_p;   // columns; log_min_p -infinity: off
  const int64_t* top_k;                   // 0: off
  const double* top_p;                    // 1: off
  const double* uniform;                  // [count], in [0, 1)
  const double* exclusions;               // [count], XTC's threshold in this step; above 1: off
  const uint32_t* masks;                  // as in MaskParams
  const int64_t* mask_of;                 // [count]: each one's place in the masks; -1: every token is allowed
  int64_t* tokens;                        // [count]; -1 if no token is allowed
  int64_t stride;
  int32_t count, vocab;
};
API void draw_tokens(Pool*, const DrawParams*);

// Log-probabilities of one given token of each row, then of the row's best tokens. Logits are finite.
struct LogprobParams {
  const float* logits;
  const int64_t *indices, *tokens, *counts;  // [count]: a row of the logits, its given token, its number of best tokens
  int32_t* ids;                              // [count, width]: the given token, then the best in rank order
  float* logprobs;                           // [count, width]
  int32_t* ranks;                            // [count], of the given token; the best has rank 1
  int64_t stride;
  int32_t count, vocab, width;
};
API void token_logprobs(Pool*, const LogprobParams*);
