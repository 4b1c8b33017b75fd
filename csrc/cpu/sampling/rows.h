// A row of logits as tiles: their maxima, and the best tokens in rank order. sampling.cpp describes the algorithm.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "api.h"
#include "isa/isa.h"

namespace sampling {

constexpr int TILE = 256;
constexpr float INF = std::numeric_limits<float>::infinity();

// A place in rank order, as an integer: the logit's bits, mapped so that higher logits come first, then the token id.
using Key = uint64_t;

inline Key key_of(float logit, int token) {
  logit += 0.0f;  // -0 and 0 are equal
  uint32_t bits;
  std::memcpy(&bits, &logit, sizeof bits);
  const uint32_t ascending = bits & 0x80000000 ? ~bits : bits | 0x80000000;
  return (Key)~ascending << 32 | (uint32_t)token;
}
inline int token_of(Key key) { return (int)(uint32_t)key; }

// The last token that stays in the draw.
struct Cut {
  float logit = -INF;
  int32_t token = std::numeric_limits<int32_t>::max();
};

// One row, and the results about it so far. The vectors are scratch memory that a thread keeps.
struct Row {
  const float* logits;
  int vocab, tiles;
  float top = -INF;
  std::vector<float> maxima;   // [tiles]
  std::vector<double> sums;    // [tiles], of the weights up to and including each
  std::vector<Key> best;       // in rank order, as many as were requested
  std::vector<float> ordered;  // scratch of nth_maximum
  std::vector<float> weights;  // [tiles * TILE], scratch of cut_by_halving
  std::vector<float> changed;  // [vocab], the logits, -infinity where a mask forbids or XTC excludes the token

  void begin(const float* its_logits, int its_vocab) {
    logits = its_logits, vocab = its_vocab, tiles = (vocab + TILE - 1) / TILE, top = -INF;
    maxima.resize(tiles), sums.resize(tiles);
  }
  void add_maximum(int tile, float maximum) {
    maxima[tile] = maximum;
    top = std::max(top, maximum);
  }
  int start(int tile) const { return tile * TILE; }
  int size(int tile) const { return std::min(TILE, vocab - tile * TILE); }
};

inline F32 get(const float* p, int n) {
  if (n >= LANES) return load(p);
  float filled[LANES];
  for (int i = 0; i < LANES; i++) filled[i] = i < n ? p[i] : -INF;
  return load(filled);
}

inline I32 lane_numbers() {
  I32 lanes;
  for (int i = 0; i < LANES; i++) lanes[i] = i;
  return lanes;
}

// Finds the maxima; false if some logit is not finite.
inline bool scan(Row& row, const float* logits, int vocab) {
  row.begin(logits, vocab);
  F32 strange = splat(0.0f);  // NaN as soon as a logit is not finite
  for (int t = 0; t < row.tiles; t++) {
    const float* tile = logits + row.start(t);
    const int size = row.size(t);
    F32 high = splat(-INF);
    for (int i = 0; i < size; i += LANES) {
      const F32 x = get(tile + i, size - i), own = i + LANES <= size ? x : load_n(tile + i, size - i);
      high = max(x, high);
      strange += own - own;
    }
    row.add_maximum(t, highest(high));
  }
  return sum(strange) == 0.0f;
}

// Copies the tile `from` to `tile`, with -infinity for tokens that `mask` does not allow; the two may be the same.
// Returns the tile's maximum.
inline float mask_tile(const float* from, int size, const uint32_t* mask, float* tile) {
  const int words = (size + 31) / 32;
  uint32_t some = 0;
  for (int word = 0; word < words; word++) some |= mask[word];
  if (!some) return std::fill(tile, tile + size, -INF), -INF;
  const I32 lanes = lane_numbers();
  F32 high = splat(-INF);
  int i = 0;
  for (; i + LANES <= size; i += LANES) {
    const I32 bits = splat((int32_t)(mask[i / 32] >> i % 32)), is_allowed = (bits >> lanes & splat(1)) == splat(1);
    const F32 x = is_allowed ? load(from + i) : splat(-INF);
    store(tile + i, x);
    high = max(x, high);
  }
  float top = highest(high);
  for (; i < size; i++) {
    tile[i] = mask[i / 32] >> i % 32 & 1 ? from[i] : -INF;
    top = std::max(top, tile[i]);
  }
  return top;
}

// Copies the logits to `out`, with -infinity for tokens that `mask` does not allow, and finds the tiles' maxima; the two
// may be the same.
inline void scan_masked(Row& row, const float* logits, int vocab, const uint32_t* mask, float* out) {
  row.begin(out, vocab);
  for (int t = 0; t < row.tiles; t++)
    row.add_maximum(t, mask_tile(logits + row.start(t), row.size(t), mask + t * (TILE / 32), out + row.start(t)));
}

inline int argmax(const Row& row) {
  int t = 0;
  while (t < row.tiles - 1 && row.maxima[t] < row.top) t++;
  const float *tile = row.logits + row.start(t), *end = tile + row.size(t), *found = std::find(tile, end, row.top);
  return found == end ? 0 : (int)(found - row.logits);  // in a row of NaN there is none
}

// The n-th largest of the tiles' maxima: at least n tokens have logits this large.
inline float nth_maximum(Row& row, int n) {
  row.ordered.assign(row.maxima.begin(), row.maxima.end());
  std::nth_element(row.ordered.begin(), row.ordered.begin() + (n - 1), row.ordered.end(), std::greater<float>());
  return row.ordered[n - 1];
}

// Fills row.best with the n best tokens, in rank order.
inline void find_best(Row& row, int n) {
  const float least = n <= row.tiles ? nth_maximum(row, n) : -INF;
  row.best.clear();
  for (int t = 0; t < row.tiles; t++) {
    if (row.maxima[t] < least) continue;
    const int from = row.start(t), to = from + row.size(t);
    for (int i = from; i < to; i++)
      if (row.logits[i] >= least) row.best.push_back(key_of(row.logits[i], i));
  }
  n = std::min(n, (int)row.best.size());
  std::nth_element(row.best.begin(), row.best.begin() + (n - 1), row.best.end());
  std::sort(row.best.begin(), row.best.begin() + n);
  row.best.resize(n);
}

}  // namespace sampling
