// Definitions shared by the kernels of paged attention: how keys are divided, and the lists that plan.cu writes.
//
// A row is a query of one KV head: row r of a request is its token r / group, query head r % group of the KV head.
#pragma once
#include "device.cuh"

constexpr int TILE_KEYS = 64;    // keys per tile; tiles begin at multiples of it
constexpr int SPLIT_KEYS = 512;  // keys that are summed together, from multiples of it; the sums are joined in order
static_assert(SPLIT_KEYS % TILE_KEYS == 0);

// A block's work item, for one KV head: rows [first_row, first_row + rows) of a request over keys [from, to). These are all
// keys that any of the rows attends to, or those of them in one split.
struct Work {
  int request, first_row, rows, from, to;
  int slot;  // of the first row's sums in the buffer of parts; -1: the results are complete and go to `out`
};
// Rows that were split: the sums of split s of row r are at slot + s * rows + r.
struct Merge {
  int request, first_row, rows, slot, splits;
};
// The number of entries of each list.
struct Counts {
  int decode, prefill, merges;
};
