// The online softmax of attention. Every operation on a row is defined once, here: decode, prefill and the merge of splits
// inline the same functions, and so give a row the same bits.
//
// Scores keep their unit; the difference of two, times `to_log2`, is an exponent of 2. Masked keys change nothing: a masked
// key has the weight +0, and a tile or split that is masked completely multiplies earlier sums by exactly 1. Only the sign
// of a sum that is 0 may depend on masked keys; finished() makes it +.
#pragma once
#include "attention/work.cuh"

// The high score to subtract; 0 if a row has attended to no key yet.
DEVICE float shift_of(float high) { return high == MASKED ? 0.f : high; }

// cap * tanh(x), where `score * before` = 2 * log2(e) * x, with an error of 1e-7 * cap. With tanh_approx the error would be
// 0.02 for a cap of 50.
DEVICE float capped(float score, float before, float cap) {
  return fmaf(-2.f * cap, reciprocal_approx(1.f + exp2_approx(score * before)), cap);
}

// The factors of earlier sums, and of the sums that are added to them.
struct Shares {
  float old, added;
  DEVICE float join(float sum, float part) const { return fmaf(part, added, sum * old); }
};
DEVICE Shares join(float& top, float& total, float part_top, float part_total, float to_log2) {
  const float high = fmaxf(top, part_top), shift = shift_of(high);
  const Shares shares{exp2_approx((top - shift) * to_log2), exp2_approx((part_top - shift) * to_log2)};
  top = high, total = shares.join(total, part_total);
  return shares;
}

// The final factor of a row's sums. A sink is one more score, of a key without a value.
DEVICE float normaliser(float top, float total, const float* sink, float to_log2, float value_scale) {
  if (sink) total += exp2_approx(*sink * LOG2_E - top * to_log2);
  return total > 0.f ? value_scale * reciprocal_approx(total) : 0.f;
}
DEVICE float finished(float sum, float normaliser) { return fmaf(sum, normaliser, 0.f); }

// The softmax of a lane's two rows, lane / 4 and lane / 4 + 8 of its warp's 16, over STEPS times 16 keys of a tile. Each
// step has its own total, so that warps that share rows need not add their totals before a split ends.
template <int STEPS>
struct Softmax {
  float top[2] = {MASKED, MASKED};
  float total[2][STEPS] = {};  // of this lane's keys, until add_lanes()

  // The highest of this warp's scores and of all earlier scores.
  DEVICE void find_high(float (&high)[2], const float (&scores)[2 * STEPS][4]) const {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      high[i] = top[i];
#pragma unroll
      for (int t = 0; t < 2 * STEPS; t++) high[i] = fmaxf(high[i], fmaxf(scores[t][2 * i], scores[t][2 * i + 1]));
      high[i] = quad_max(high[i]);
    }
  }
  // Replaces scores by weights; `keep` becomes the factor of earlier sums.
  DEVICE void weigh(float (&scores)[2 * STEPS][4], const float (&high)[2], float to_log2, float (&keep)[2]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const float shift = shift_of(high[i]), offset = shift * to_log2;
      keep[i] = exp2_approx((top[i] - shift) * to_log2);
      top[i] = high[i];
#pragma unroll
      for (int s = 0; s < STEPS; s++) {
        float sum = 0.f;
#pragma unroll
        for (int t = 2 * s; t < 2 * s + 2; t++)
#pragma unroll
          for (int e = 2 * i; e < 2 * i + 2; e++) sum += scores[t][e] = exp2_approx(fmaf(scores[t][e], to_log2, -offset));
        total[i][s] = fmaf(total[i][s], keep[i], sum);
      }
    }
  }
  DEVICE void add_lanes() {
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int s = 0; s < STEPS; s++) total[i][s] = quad_sum(total[i][s]);
  }
};
