// Relative positions: what a score gains by the distance of its key, key - position, from a table of each head.
//
// A unit copies its heads' tables with the value of either end repeated for a tile, so that the distances of any tile are
// in the copy once the first of them is clamped. Adjacent keys of a stream are at adjacent positions: pairs are read.
#pragma once
#include <algorithm>
#include <cstring>

#include "api.h"
#include "attention/attention.h"

// Floats of a head's copy, of distances -(reach + TILE_KEYS) .. reach + TILE_KEYS - 1; 0: there are no tables.
inline size_t bias_floats(const AttentionParams& p) { return p.bias ? 2 * ((size_t)p.bias_reach + TILE_KEYS) : 0; }

// The copies of `head`'s queries, [group][bias_floats], in exponents of 2.
inline void copy_biases(const AttentionParams& p, int head, float* to) {
  const int values = 2 * p.bias_reach + 1, count = (int)bias_floats(p);
  for (int m = 0; m < (count ? p.group : 0); m++) {
    const float* from = p.bias + ((size_t)head * p.group + m) * values;
    for (int i = 0; i < count; i++) to[(size_t)m * count + i] = LOG2E * from[std::clamp(i - TILE_KEYS, 0, values - 1)];
  }
}

// The biases of a tile's keys in a head's copy; the first key is at `distance` from the query.
inline const float* of_tile(const AttentionParams& p, const float* copy, int distance) {
  const int least = -p.bias_reach - TILE_KEYS;
  return copy + (std::clamp(distance, least, p.bias_reach) - least);
}

// A vector of of_keys [TILE_KEYS], in the order of positions.
inline F32 by_position(const float* of_keys, int position) {
  alignas(64) float found[LANES];
  const int32_t* keys = KEY_AT.data() + position % HALF_KEYS;
  of_keys += position / HALF_KEYS * HALF_KEYS;
#pragma GCC unroll 8
  for (int lane = 0; lane < LANES; lane += 2) std::memcpy(found + lane, of_keys + keys[lane], 2 * sizeof(float));
  return load(found);
}
