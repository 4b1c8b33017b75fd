// A row of N floats in the registers of a warp: element s * 32 + lane is x[s] of a lane. Every function is called by all
// lanes of a warp. All arithmetic consists of plain IEEE operations in the order of csrc/cpu (isa/isa.h, elementwise/rows.h), so results
// have the bits of the CPU kernels on every device, but where those flush denormal numbers.
#pragma once
#include "exponential.cuh"

DEVICE float lowest() { return __uint_as_float(0xff800000u); }  // -infinity
template <int N>
constexpr int SLOTS = (N + 31) / 32;
template <int N>
using WarpRow = float[SLOTS<N>];

// Calls body(slot, element) for each of this lane's elements.
template <int N, class Body>
DEVICE void each_element(Body body) {
#pragma unroll
  for (int s = 0; s < SLOTS<N>; s++) {
    const int element = s * 32 + threadIdx.x % 32;
    if (element < N) body(s, element);
  }
}

template <int N>
DEVICE float row_max(const WarpRow<N>& x) {
  float top = lowest();
  each_element<N>([&](int s, int) { top = fmaxf(top, x[s]); });
  return warp_max(top);
}

// Elements i of whole 64 add to sum i % 64, the rest to sum i % 16; sums i, i + 16, ... of 64 are joined as (0 + 1) + (2 + 3),
// then those of 16 in a tree. A lane has sum `lane` in `even` and sum `lane + 32` in `odd`.
template <int N>
DEVICE float row_sum(const WarpRow<N>& x) {
  constexpr int WHOLE = N / 64 * 2;
  const int lane = threadIdx.x % 32;
  float even = 0.f, odd = 0.f;
#pragma unroll
  for (int s = 0; s < WHOLE; s += 2) even += x[s], odd += x[s + 1];
#pragma unroll
  for (int s = WHOLE; s < SLOTS<N>; s++) {
    const float mine = s * 32 + lane < N ? x[s] : 0.f, other = __shfl_xor_sync(ALL_LANES, mine, 16);
    if (lane < 16) even = even + mine + other;
  }
  even += __shfl_xor_sync(ALL_LANES, even, 16);
  odd += __shfl_xor_sync(ALL_LANES, odd, 16);
  float total = even + odd;
#pragma unroll
  for (int distance = 8; distance; distance /= 2) total += __shfl_xor_sync(ALL_LANES, total, distance);
  return total;
}

template <int N>
DEVICE void softmax(WarpRow<N>& x) {
  const float top = row_max<N>(x);
  each_element<N>([&](int s, int) { x[s] = exponential(x[s] - top); });
  const float total = row_sum<N>(x);
  each_element<N>([&](int s, int) { x[s] /= total; });
}

// ---- sets of elements: bit s of a lane's word is element s * 32 + lane ------------------------------------------------

// Ascends with the value and, among equals, descends with the element; never 0. A NaN is below all numbers.
DEVICE uint64_t rank_of(float value, int element) {
  const uint32_t bits = __float_as_uint(value + 0.f);  // -0 becomes 0
  const uint32_t key = value != value ? 0u : bits >> 31 ? ~bits : bits | 0x80000000u;
  return uint64_t(key) << 32 | uint32_t(~element);
}

// `chosen` and the highest of the other elements.
template <int N>
DEVICE uint32_t with_highest(const WarpRow<N>& x, uint32_t chosen) {
  uint64_t ranks[SLOTS<N>] = {}, best = 0;
  each_element<N>([&](int s, int element) {
    if (!(chosen >> s & 1)) ranks[s] = rank_of(x[s], element);
    if (ranks[s] > best) best = ranks[s];
  });
#pragma unroll
  for (int distance = 16; distance; distance /= 2) {
    const uint64_t other = __shfl_xor_sync(ALL_LANES, best, distance);
    if (other > best) best = other;
  }
  each_element<N>([&](int s, int) { chosen |= uint32_t(ranks[s] == best) << s; });
  return chosen;
}
template <int N, int COUNT>
DEVICE uint32_t highest(const WarpRow<N>& x) {
  uint32_t chosen = 0;
#pragma unroll 1
  for (int i = 0; i < COUNT; i++) chosen = with_highest<N>(x, chosen);
  return chosen;
}

// Calls visit(slot, element, place) for each of this lane's elements that are chosen; places are in ascending order.
template <int N, class Visit>
DEVICE void each_chosen(uint32_t chosen, Visit visit) {
  int before = 0;
#pragma unroll
  for (int s = 0; s < SLOTS<N>; s++) {
    const int lane = threadIdx.x % 32;
    const uint32_t lanes = __ballot_sync(ALL_LANES, chosen >> s & 1);
    if (lanes >> lane & 1) visit(s, s * 32 + lane, before + __popc(lanes & ((1u << lane) - 1)));
    before += __popc(lanes);
  }
}
