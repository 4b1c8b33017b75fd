// From scores to sums of values, for paged and latent attention: a warp's scores of a tile become weights, and the weights
// of all its keys multiply this warp's dims of the values.
#pragma once
#include "attention/exchange.cuh"
#include "attention/item.cuh"

using Scores = float[2 * MINE][4];  // matrices of 8 keys; a lane has columns 2 * (lane % 4) and the next

// Of values of VALUE_PAIRS pairs of 8 dims, a warp sums the pairs share, share + SHARING, ...
template <int VALUE_PAIRS>
constexpr int WARP_PAIRS = (VALUE_PAIRS + SHARING - 1) / SHARING;
template <int VALUE_PAIRS>
using SumsOf = float[2 * WARP_PAIRS<VALUE_PAIRS>][4];

// The weights of this warp's keys, in the layout of multiply_add; `keep` becomes the factor of earlier sums. All threads
// of the block call it; other warps may read the weights after the next barrier.
DEVICE void weigh(Weights& weights, Scores& scores, float (&keep)[2], Softmax<MINE>& softmax, Exchange& exchange,
                  float to_log2) {
  float high[2];
  softmax.find_high(high, scores);
  exchange.join_highs(high);
  softmax.weigh(scores, high, to_log2, keep);
#pragma unroll
  for (int s = 0; s < MINE; s++)
#pragma unroll
    for (int i = 0; i < 4; i++)
      weights[s][i] = pack2<SCALAR>(scores[2 * s + i / 2][i % 2 * 2], scores[2 * s + i / 2][i % 2 * 2 + 1]);
  exchange.share_weights(weights);
}

// sums = keep * sums + weights * values, for this warp's dims.
template <int VALUE_PAIRS>
DEVICE void add_values(SumsOf<VALUE_PAIRS>& sums, const float (&keep)[2], const Weights& mine, const Exchange& exchange,
                       const unsigned char* values, const Item& item) {
  const unsigned char* row = values + item.lane % 16 * STRIDE + item.lane / 16 * 16;
#pragma unroll
  for (int d = 0; d < 2 * WARP_PAIRS<VALUE_PAIRS>; d++)
#pragma unroll
    for (int e = 0; e < 4; e++) sums[d][e] *= keep[e / 2];
#pragma unroll
  for (int step = 0; step < STEPS; step++) {
    uint32_t a[4];
    exchange.weights(a, mine, step);
#pragma unroll
    for (int d = 0; d < WARP_PAIRS<VALUE_PAIRS>; d++) {
      const int pair = item.share + d * SHARING;
      if (VALUE_PAIRS % SHARING && pair >= VALUE_PAIRS) break;
      uint32_t b[4];  // dims 0-7, keys 0-7 | 8-15, then dims 8-15
      load_matrices_transposed(b, row + step * 16 * STRIDE + pair * 32);
      multiply_add<SCALAR>(sums[2 * d], a, b[0], b[1]);
      multiply_add<SCALAR>(sums[2 * d + 1], a, b[2], b[3]);
    }
  }
}
