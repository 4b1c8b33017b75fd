// What the kernels of paged attention agree on: how keys are cut, and the lists that plan.cu writes.
//
// A row is a query of one KV head: row r of a request is its token r / group, query head r % group of the KV head.
#pragma once
#include "device.cuh"

constexpr int TILE_KEYS = 64;    // keys are visited in tiles at multiples of 64
constexpr int SPLIT_KEYS = 512;  // and summed anew at multiples of 512; these sums are joined in order
static_assert(SPLIT_KEYS % TILE_KEYS == 0);

// What a block does at once, for one KV head: rows [first_row, first_row + rows) of a request over keys [from, to), all
// that any of the rows sees, or its part in one split.
struct Work {
  int request, first_row, rows, from, to;
  int slot;  // of the first row's sums in the buffer of parts; -1: the rows are whole and go to `out`
};
// Rows that were cut: split s of row r waits at slot + s * rows + r.
struct Merge {
  int request, first_row, rows, slot, splits;
};
// How many there are of each list.
struct Counts {
  int decode, prefill, merges;
};
