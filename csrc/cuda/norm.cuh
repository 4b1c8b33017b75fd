// What norms share: a row of [rows, SIZE] in the registers of a block's threads, pack i * THREADS + threadIdx.x in hidden[i].
// Sums over a row are taken within a pack of 8, over a thread's packs, the lanes of a warp, the warps.
#pragma once
#include "packs.cuh"

constexpr int PACKS = SIZE / 8, PACKS_PER_THREAD = (PACKS + THREADS - 1) / THREADS, WARPS = THREADS / 32;
static_assert(SIZE % 8 == 0);

using Row = float[PACKS_PER_THREAD][8];

// Calls body(hidden[i], at) for each of this thread's packs, `at` its place in the row.
template <class Body>
DEVICE void each_pack(Row& hidden, Body body) {
#pragma unroll
  for (int i = 0; i < PACKS_PER_THREAD; i++) {
    const int at = i * THREADS + threadIdx.x;
    if (at >= PACKS) break;
    body(hidden[i], at);
  }
}

// The row that starts at pack `row` of `from`. If there is a `delta`, it is added, rounded to SCALAR, and `from` updated.
DEVICE void load_row(Row& hidden, void* from, const void* delta, int64_t row) {
  each_pack(hidden, [&](float(&x)[8], int at) {
    load8<SCALAR>(x, from, row + at);
    if (!delta) return;
    float added[8];
    load8<SCALAR>(added, delta, row + at);
#pragma unroll
    for (int e = 0; e < 8; e++) x[e] = to_float(from_float<SCALAR>(x[e] + added[e]));
    store8<SCALAR>(from, row + at, x);
  });
}
