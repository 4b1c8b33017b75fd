// The rows of a step that have a LoRA adapter, and what adapters add to one projection; the layouts are those of
// csrc/cpu/lora/lora.h. A row's bits depend on the row alone.
#pragma once
#include "packs.cuh"

constexpr int GROUP_ROWS = 16, MAX_RANK = 256, PANEL = 64;

struct LoraPart {
  const void* a;  // [rank, rounded up to 4, inputs]; of an embedding [inputs, rank]
  const void* b;  // [ceil(outputs / 64)][rank][64]
  int32_t rank;   // 0: nothing is added
  float scale;
};

struct LoraParams {
  void* y;                // expand: [rows, outputs], rows y_stride apart
  const void* x;          // shrink: [rows, inputs], rows x_stride apart; look up: [rows] int64
  float* sums;            // [shares, rows, parts, max_rank]
  const int32_t* groups;  // [1 + 4 * rows]: their number; (place, first, count) of each; from 1 + 3 * rows on, rows
  const LoraPart* table;  // [places, parts]
  const int32_t* starts;  // [parts + 1], the first output of each part
  int64_t x_stride, y_stride;
  int32_t rows, parts, inputs, max_rank, shares;
};

struct LoraGroup {
  int place, count;     // 0 rows: the grid has more blocks than there are groups
  const int32_t* rows;
};

DEVICE LoraGroup group_of(const LoraParams& p, int index) {
  if (index >= p.groups[0]) return {0, 0, nullptr};
  const int32_t* group = p.groups + 1 + 3 * index;
  return {group[0], group[2], p.groups + 1 + 3 * int64_t(p.rows) + group[1]};
}
