// The joined sums of the splits before the current one, in registers or in shared memory.
#pragma once
#include "attention/values.cuh"

// Joins one split into the total: the factors of a lane's two rows.
DEVICE void join_split(Shares (&shares)[2], float (&top)[2], float (&total)[2], Softmax<MINE>& softmax,
                       Exchange& exchange, float to_log2) {
  float part_total[2];
  softmax.add_lanes();
  exchange.join_totals(part_total, softmax.total);
#pragma unroll
  for (int i = 0; i < 2; i++) shares[i] = join(top[i], total[i], softmax.top[i], part_total[i], to_log2);
}

// In registers. `part` holds the sums of a split, which start again from 0.
template <int VALUE_PAIRS>
struct KeptTotal {
  static constexpr int SUMS = 2 * WARP_PAIRS<VALUE_PAIRS>;
  SumsOf<VALUE_PAIRS> sums = {};
  float top[2] = {MASKED, MASKED}, total[2] = {0.f, 0.f};

  DEVICE explicit KeptTotal(unsigned char*) {}

  DEVICE void close_split(SumsOf<VALUE_PAIRS>& part, Softmax<MINE>& softmax, Exchange& exchange, float to_log2) {
    Shares shares[2];
    join_split(shares, top, total, softmax, exchange, to_log2);
#pragma unroll
    for (int d = 0; d < SUMS; d++)
#pragma unroll
      for (int e = 0; e < 4; e++) sums[d][e] = shares[e / 2].join(sums[d][e], part[d][e]), part[d][e] = 0.f;
    softmax = Softmax<MINE>{};
  }
  // The sums of all splits, of which the last is `part`.
  DEVICE const SumsOf<VALUE_PAIRS>& finish(SumsOf<VALUE_PAIRS>& part, Softmax<MINE>& softmax, Exchange& exchange,
                                           float to_log2) {
    close_split(part, softmax, exchange, to_log2);
    return sums;
  }
};

// In shared memory: SUMS * THREADS * 16 bytes, from `shared` on.
template <int VALUE_PAIRS>
struct SharedTotal {
  static constexpr int SUMS = 2 * WARP_PAIRS<VALUE_PAIRS>;
  float4* sums;
  float top[2] = {MASKED, MASKED}, total[2] = {0.f, 0.f};
  bool empty = true;

  DEVICE explicit SharedTotal(unsigned char* shared) : sums(reinterpret_cast<float4*>(shared)) {}

  DEVICE void close_split(SumsOf<VALUE_PAIRS>& part, Softmax<MINE>& softmax, Exchange& exchange, float to_log2) {
    finish(part, softmax, exchange, to_log2);
#pragma unroll
    for (int d = 0; d < SUMS; d++) {
      sums[d * THREADS + threadIdx.x] = make_float4(part[d][0], part[d][1], part[d][2], part[d][3]);
#pragma unroll
      for (int e = 0; e < 4; e++) part[d][e] = 0.f;
    }
    softmax = Softmax<MINE>{};
    empty = false;
  }
  // The sums of all splits, of which the last is `part`, in the place of its own.
  DEVICE const SumsOf<VALUE_PAIRS>& finish(SumsOf<VALUE_PAIRS>& part, Softmax<MINE>& softmax, Exchange& exchange,
                                           float to_log2) {
    Shares shares[2];
    join_split(shares, top, total, softmax, exchange, to_log2);
    if (empty) return part;
#pragma unroll
    for (int d = 0; d < SUMS; d++) {
      const float4 old = sums[d * THREADS + threadIdx.x];
      part[d][0] = shares[0].join(old.x, part[d][0]), part[d][1] = shares[0].join(old.y, part[d][1]);
      part[d][2] = shares[1].join(old.z, part[d][2]), part[d][3] = shares[1].join(old.w, part[d][3]);
    }
    return part;
  }
};
