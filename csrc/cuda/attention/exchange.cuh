// The exchange between warps that share rows, through shared memory: each warp scores its part of a tile's keys, and
// multiplies the weights of all keys by its part of the dims. With SHARING 1 a warp has all keys and dims: no exchange.
#pragma once
#include "attention/softmax.cuh"

constexpr int ROWS = 16 * ROW_WARPS;
constexpr int STEPS = TILE_KEYS / 16;    // of 16 keys each, the inner dimension of one product of matrices
constexpr int MINE = STEPS / SHARING;    // this warp's share of the steps
constexpr int EXCHANGE_BYTES = SHARING > 1 ? ROWS * (TILE_KEYS * 2 + 2 * STEPS * 4) : 0;
static_assert(STEPS == 4 && STEPS % SHARING == 0);

using Weights = uint32_t[MINE][4];  // as multiply_add takes them

class Exchange {
 public:
  DEVICE Exchange(unsigned char* shared, int row_warp, int share, int lane) : share_(share), lane_(lane) {
    weights_ = reinterpret_cast<uint4*>(shared) + row_warp * STEPS * 32;
    highs_ = reinterpret_cast<float*>(shared + ROWS * TILE_KEYS * 2) + row_warp * 16 * STEPS;
    totals_ = highs_ + ROWS * STEPS;
  }

  // Replaces the highest scores of this warp's keys by those of the tile. All threads of the block call it.
  DEVICE void join_highs(float (&high)[2]) {
    if constexpr (SHARING > 1) {
#pragma unroll
      for (int i = 0; i < 2; i++) publish(highs_, i, share_, high[i]);
      __syncthreads();
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const float* row = highs_ + row_of(i) * STEPS;
#pragma unroll
        for (int warp = 0; warp < SHARING; warp++) high[i] = fmaxf(high[i], row[warp]);
      }
    }
  }
  // Stores this warp's weights; other warps may read them after the next barrier.
  DEVICE void share_weights(const Weights& mine) {
    if constexpr (SHARING > 1)
#pragma unroll
      for (int s = 0; s < MINE; s++)
        weights_[(share_ * MINE + s) * 32 + lane_] = make_uint4(mine[s][0], mine[s][1], mine[s][2], mine[s][3]);
  }
  DEVICE void weights(uint32_t (&a)[4], const Weights& mine, int step) const {
    const uint4 shared = SHARING > 1 ? weights_[step * 32 + lane_] : make_uint4(0, 0, 0, 0);
    const uint32_t words[4] = {shared.x, shared.y, shared.z, shared.w};
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] = SHARING > 1 ? words[i] : mine[step % MINE][i];
  }
  // The sum of a row's weights, step by step. All threads of the block call it.
  DEVICE void join_totals(float (&total)[2], const float (&mine)[2][MINE]) {
    float all[2][STEPS];
    if constexpr (SHARING > 1) {
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int s = 0; s < MINE; s++) publish(totals_, i, share_ * MINE + s, mine[i][s]);
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int s = 0; s < STEPS; s++) all[i][s] = SHARING > 1 ? totals_[row_of(i) * STEPS + s] : mine[i][s % MINE];
#pragma unroll
    for (int i = 0; i < 2; i++) total[i] = ((all[i][0] + all[i][1]) + all[i][2]) + all[i][3];
  }

 private:
  DEVICE int row_of(int half) const { return lane_ / 4 + half * 8; }
  DEVICE void publish(float* to, int half, int column, float x) {
    if (lane_ % 4 == 0) to[row_of(half) * STEPS + column] = x;
  }

  uint4* weights_;  // [STEPS][32 lanes]
  float* highs_;    // [16 rows][STEPS], of which SHARING are used
  float* totals_;   // [16 rows][STEPS]
  int share_, lane_;
};
