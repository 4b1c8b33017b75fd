// Attention over an int8 cache: each tile's codes are converted to bfloat16 or float16, in which they are exact, and their
// scales multiply the scores and the weights (attention/softmax.h). A key's result depends on that key alone.
//
// Floor   half the bytes of a bfloat16 cache are read, but each code is converted once per tile and KV head: about 4000
//         AVX512 instructions for 128 keys and values of 128 elements, which take about as long as reading them
#pragma once
#include "attention/attention.h"

// A tile's keys and values as rows, [TILE_KEYS, row_dim] each, and their scales by position, 0 for masked positions.
template <class Element> struct Expansion {
  Element *keys, *values;
  float *key_scales, *value_scales;  // [TILE_KEYS]
};

template <class Element> void expand_stream(Element* out, const char* codes, int count, const char* ahead) {
  for (int i = 0; i < count; i += LANES) {
    if (i % 64 == 0) prefetch<2>(ahead + i);
    put(out + i, load_s8(codes + i), LANES);
  }
}

// Converts `tile` into `to`, and meanwhile prefetches `next`. Returns the tile with the addresses of its copies.
template <class Element>
Tile expand(const Tile& tile, const Tile& next, const AttentionParams& p, const Expansion<Element>& to) {
  Tile expanded = tile;
  const int count = STREAM_KEYS * cached_dim(p.head_dim);
  for (int s = 0; s < 2 * STREAMS; s++) {
    Half &half = expanded.halves[s / STREAMS];
    const Half& ahead = next.halves[s / STREAMS];
    const int stream = s % STREAMS, first = s / STREAMS * HALF_KEYS;
    const int64_t row = half.rows[stream];
    if (row >= 0) {
      expand_stream(to.keys + s * count, half.keys[stream], count, ahead.keys[stream]);
      expand_stream(to.values + s * count, half.values[stream], count, ahead.values[stream]);
      half.keys[stream] = (const char*)(to.keys + s * count);
      half.values[stream] = (const char*)(to.values + s * count);
    }
    for (int key = 0; key < STREAM_KEYS; key++) {
      const int position = first + key / 2 * 2 * STREAMS + 2 * stream + key % 2;
      to.key_scales[position] = row < 0 ? 0 : p.key_scales[row + key];
      to.value_scales[position] = row < 0 ? 0 : p.value_scales[row + key];
    }
  }
  return expanded;
}
