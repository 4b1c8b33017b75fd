// The common part of norms: a row of [rows, SIZE] in the registers of a block's threads, pack i * THREADS + threadIdx.x
// in hidden[i]. A sum over a row adds within each pack of 8, then a thread's packs, then the lanes of a warp, then warps.
#pragma once
#include "packs.cuh"

constexpr int PACKS = SIZE / 8, PACKS_PER_THREAD = (PACKS + THREADS - 1) / THREADS, WARPS = THREADS / 32;
static_assert(SIZE % 8 == 0);

using Row = float[PACKS_PER_THREAD][8];

// Calls body(hidden[i], at) for each of this thread's packs; `at` is the pack's place in the row.
template <class Body>
DEVICE void each_pack(Row& hidden, Body body) {
#pragma unroll
  for (int i = 0; i < PACKS_PER_THREAD; i++) {
    const int at = i * THREADS + threadIdx.x;
    if (at >= PACKS) break;
    body(hidden[i], at);
  }
}

// Loads the row that starts at pack `row` of `from`. A `delta`, if not null, is added and rounded to SCALAR, in `from` too.
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
