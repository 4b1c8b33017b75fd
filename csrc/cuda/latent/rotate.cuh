// The rotation of latent attention: elements j and j + ROPE_DIM / 2 are a pair. A thread has a pack of 8 of either half.
#pragma once
#include "packs.cuh"

constexpr int ROPE_PACKS = ROPE_DIM / 8, HALF_PACKS = ROPE_PACKS / 2;
static_assert(ROPE_DIM % 16 == 0);

// Rotates pack `pack` of the halves at `from`, in float, and stores it at `to`, rounded once. `angles`: [ROPE_DIM] of the
// token's position, cosines of the pairs, then sines.
DEVICE void rotate_pack(SCALAR* to, const SCALAR* from, const float* angles, int pack) {
  float low[8], high[8], cosine[8], sine[8];
  load8<SCALAR>(low, from, pack);
  load8<SCALAR>(high, from, HALF_PACKS + pack);
  load8<float>(cosine, angles, pack);
  load8<float>(sine, angles, HALF_PACKS + pack);
#pragma unroll
  for (int e = 0; e < 8; e++) {
    const float x = low[e], y = high[e];
    low[e] = x * cosine[e] - y * sine[e], high[e] = y * cosine[e] + x * sine[e];
  }
  store8<SCALAR>(to, pack, low);
  store8<SCALAR>(to, HALF_PACKS + pack, high);
}
