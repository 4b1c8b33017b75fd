// The online softmax of attention: scores of one tile become weights, and earlier sums get the factor by which they shrink.
//
// Weights are powers of two: scores are multiplied by scale * log2(e), before a cap, a slope or a bias is applied. The highest
// score of an empty range is LOWEST, and its sums are zeros. Tiles outside a row's mask change nothing: their weights are
// exact zeros, and the factor of earlier sums is exactly 1.
#pragma once
#include <cfloat>

#include "attention/attention.h"
#include "attention/bias.h"

constexpr float LOWEST = -FLT_MAX;
constexpr int WEIGH_UNROLL = WIDE_VECTORS == 1 ? 2 : 1;  // four vectors need more than 16 registers

struct Scale {
  float before;  // times a product: the argument of `capped`, or without a cap an exponent of 2
  float cap;     // of exponents of 2; 0: none
  float after;   // times a product, or a shaped score: an exponent of 2
  bool shapes;   // whether `shaped` is applied to products
  explicit Scale(const AttentionParams& p)
      : before(p.cap > 0 ? 2 * LOG2E * p.scale / p.cap : LOG2E * p.scale), cap(LOG2E * p.cap),
        after(shapes_of(p) ? 1 : LOG2E * p.scale), shapes(shapes_of(p)) {}
  static bool shapes_of(const AttentionParams& p) { return p.cap > 0 || p.slopes || p.bias || p.pairs; }
};

// ALiBi in one tile: what a row's scores gain from each key to the next, in exponents of 2, and the key that gains 0.
// Relative positions and pairs: what the score of each key of the tile gains, times `unit` in exponents of 2.
struct Slant {
  float slope = 0;
  int level = 0;
  const float* bias = nullptr;  // [TILE_KEYS] or null
  float unit = 1;
};

// A product as an exponent of 2: scaled, capped, plus slope * distance with one rounding, plus the bias.
inline F32 shaped(F32 x, I32 key, int position, const Scale& scale, const Slant& slant) {
  x *= splat(scale.before);
  if (scale.cap > 0) x = capped(x, scale.cap);
  x = fma(to_float(key - splat(slant.level)), splat(slant.slope), x);
  return slant.bias ? fma(by_position(slant.bias, position), splat(slant.unit), x) : x;
}

// 2^x for x <= 0: with a relative error of 3e-6 for values of 16 bits, in full precision for float.
template <class Kv> inline F32 weight_of(F32 x) {
  if constexpr (PER_WORD<Kv> == 1) return exp2(x);
  const F32 whole = round(x), part = x - whole;
  F32 power = splat(9.582853169e-3f);
  for (float c : {5.590642504e-2f, 2.402409861e-1f, 6.931241934e-1f, 1.0f}) power = fma(power, part, splat(c));
  return scaled(power, whole);
}

// Turns a row of scores[TILE_KEYS] into weights[TILE_KEYS], zeros outside the keys [from, to) of the tile, and updates
// `top` and `totals` [WIDE]. Returns the factor of earlier sums. Only the first `halves` of the tile are read and written:
// the rest is masked. The scales of codes, by position, are null without codes.
template <class Kv, bool MASKED, bool SHAPED>
inline float weigh(float* scores, int halves, int from, int to, const Scale& scale, const Slant& slant, float& top,
                   float* totals, typename Kv::Row* weights, const float* key_scales, const float* value_scales) {
  const auto keys = [](int position) {
    return load_words(KEY_AT.data() + position % HALF_KEYS) + position / HALF_KEYS * HALF_KEYS;
  };
  const auto seen = [&](int position) {
    const I32 key = keys(position);
    return (key >= splat(from)) & (key < splat(to));
  };
  F32 high = splat(LOWEST);
  Wide total;
  const int positions = halves * HALF_KEYS;
#pragma GCC unroll 2
  for (int position = 0; position < positions; position += LANES) {
    F32 x = load(scores + position);
    if constexpr (IS_CODED<Kv>) store(scores + position, x *= load(key_scales + position));
    if constexpr (SHAPED) store(scores + position, x = shaped(x, keys(position), position, scale, slant));
    if constexpr (MASKED) x = seen(position) ? x : splat(LOWEST);
    high = max(high, x);
  }
  const float before = top, here = highest(high);
  float keep = 1;
  if (here > before) {
    top = here;
    keep = exp2(splat(before * scale.after - here * scale.after))[0];
  }
  const F32 shift = splat(-top * scale.after);
#pragma GCC unroll WEIGH_UNROLL
  for (int first = 0; first < positions; first += WIDE) EACH(v, WIDE_VECTORS) {
      const int position = first + v * LANES;
      F32 weight = weight_of<Kv>(fma(load(scores + position), splat(scale.after), shift));
      if constexpr (MASKED) weight = (F32)((I32)weight & seen(position));
      total.part[v] += weight;
      if constexpr (IS_CODED<Kv>) weight *= load(value_scales + position);
      if constexpr (IS_CODED<Kv> && MASKED) weight = (F32)((I32)weight & seen(position));  // 0 times NaN is NaN
      put(weights + position, weight, LANES);
    }
  EACH(v, WIDE_VECTORS) store(totals + v * LANES, fma(load(totals + v * LANES), splat(keep), total.part[v]));
  return keep;
}

// Adds the sums of a range to those of all ranges before it; a total of 0 means that a row has no key there.
inline void join(float* sums, float& top, float& total, const float* part, float part_top, float part_total,
                 int columns, const Scale& scale) {
  if (part_total == 0) return;
  if (total == 0) {
    std::memcpy(sums, part, columns * sizeof(float));
    top = part_top, total = part_total;
    return;
  }
  const float high = part_top > top ? part_top : top;
  const float old_share = exp2(splat((top - high) * scale.after))[0];
  const float new_share = exp2(splat((part_top - high) * scale.after))[0];
  for (int c = 0; c < columns; c += LANES)
    store(sums + c, fma(load(part + c), splat(new_share), load(sums + c) * splat(old_share)));
  top = high, total = total * old_share + part_total * new_share;
}

// The final factor of a row's sums. A sink is one more score, of a key without a value.
inline float share_of(float top, float total, const float* sink, const Scale& scale) {
  if (!sink) return 1.0f / total;
  const float level = top * scale.after, sunk = LOG2E * *sink, high = sunk > level ? sunk : level;
  const float shrunk = exp2(splat(level - high))[0];
  return shrunk / (total * shrunk + exp2(splat(sunk - high))[0]);
}
