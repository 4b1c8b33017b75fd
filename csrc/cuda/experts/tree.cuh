// The order in which sums of shares, segments or ranks are added: (0 + 1) + (2 + 3), so that ranks with one or two of four
// have the bits of one rank with all.
#pragma once
#include "packs.cuh"

// sums = the tree over N packs; part(values, i) sets the values of pack i, in ascending order.
template <int N, class Part>
DEVICE void add_tree(float (&sums)[8], Part part, int first = 0) {
  static_assert(N == 1 || N == 2 || N == 4);
  if constexpr (N == 1) {
    part(sums, first);
  } else {
    float more[8];
    add_tree<N / 2>(sums, part, first);
    add_tree<N / 2>(more, part, first + N / 2);
#pragma unroll
    for (int e = 0; e < 8; e++) sums[e] += more[e];
  }
}

// sums = the tree over N packs of floats, `stride` packs apart.
template <int N>
DEVICE void load_added(float (&sums)[8], const float* from, int64_t pack, int64_t stride) {
  add_tree<N>(sums, [&](float(&values)[8], int i) { load8<float>(values, from, pack + i * stride); });
}
DEVICE void store_floats(float* to, int64_t pack, const float (&x)[8]) {
  float4* floats = reinterpret_cast<float4*>(to) + 2 * pack;
  floats[0] = make_float4(x[0], x[1], x[2], x[3]), floats[1] = make_float4(x[4], x[5], x[6], x[7]);
}
