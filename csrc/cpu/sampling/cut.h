// Truncates a row's distribution: weights, their mass per tile, the cut of min-p, top-k and top-p, and XTC.
#pragma once
#include "sampling/rows.h"

namespace sampling {

constexpr float LEAST_EXPONENT = -87.0f;  // below it a weight is zero
constexpr int FIRST_LOOK = 64;            // top-p's last token is usually among this many best tokens
constexpr int FEW = 256;                  // a range of at most this many tokens is sorted instead of halved again
constexpr int32_t ABOVE_ONE = 0x3f800001;  // the bits of the next float after 1

// How logits become weights: exp((logit - top) / temperature), zero if that is less than min-p of the maximum.
struct Weights {
  float top, temperature, least;

  F32 exponent(F32 x) const { return (x - splat(top)) / splat(temperature); }
  bool are_zero_up_to(float x) const { return (x - top) / temperature < least; }
  F32 operator()(F32 x) const {
    const F32 e = exponent(x);
    return e < splat(least) ? splat(0.0f) : exp(e);
  }
  float operator()(float x) const {
    alignas(64) float lanes[LANES];
    store(lanes, (*this)(splat(x)));
    return lanes[0];
  }
};

// out[TILE]: the weights of a tile's kept tokens, and zeros for its other tokens.
inline void tile_weights(const Row& row, const Weights& weights, const Cut& cut, int t, float* out) {
  const int from = row.start(t), size = row.size(t);
  const F32 border = splat(cut.logit);
  for (int i = 0; i < TILE; i += LANES) {
    if (i >= size) {
      store(out + i, splat(0.0f));
      continue;
    }
    const F32 x = get(row.logits + from + i, size - i);
    const I32 is_early = lane_numbers() + splat((int32_t)(from + i)) <= splat(cut.token);
    const I32 is_kept = (x > border) | ((x == border) & is_early);
    store(out + i, (F32)((I32)weights(x) & is_kept));
  }
}

// The sum of a tile, in two chains of 16 lanes.
struct TileSums {
  static constexpr int VECTORS = 2 * WIDE_VECTORS, STEP = 2 * WIDE;
  Wide chains[2];

  void add(int vector, F32 x) { chains[vector / WIDE_VECTORS].part[vector % WIDE_VECTORS] += x; }
  float total() const {
    Wide both;
    EACH(v, WIDE_VECTORS) both.part[v] = chains[0].part[v] + chains[1].part[v];
    return sum(both);
  }
};

inline float tile_sum(const float* weights) {
  TileSums sums;
  for (int i = 0; i < TILE; i += sums.STEP)
    EACH(v, sums.VECTORS) sums.add(v, load(weights + i + v * LANES));
  return sums.total();
}

// Fills row.sums with the mass of the tokens that the cut keeps; returns their total mass.
inline double sum_tiles(Row& row, const Weights& weights, const Cut& cut) {
  alignas(64) float tile[TILE];
  double total = 0.0;
  for (int t = 0; t < row.tiles; t++) {
    if (row.maxima[t] >= cut.logit && !weights.are_zero_up_to(row.maxima[t])) {
      tile_weights(row, weights, cut, t, tile);
      total += tile_sum(tile);
    }
    row.sums[t] = total;
  }
  return total;
}

inline Cut cut_at(const Row& row, Key key) { return {row.logits[token_of(key)], token_of(key)}; }

// The number of leading `keys`, in rank order, whose weights bring `mass` up to the goal; 0 if all of them do not.
inline int prefix(const Row& row, const Weights& weights, const std::vector<Key>& keys, double mass, double goal) {
  for (size_t i = 0; i < keys.size(); i++)
    if ((mass += weights(row.logits[token_of(keys[i])])) >= goal) return (int)i + 1;
  return 0;
}

struct Mass {
  double sum = 0.0;
  int count = 0;
};

// Sum and number of the weights of at least `least`. Weights are not negative, so they compare like their bits.
inline Mass mass_from(const Row& row, int32_t least) {
  Mass mass;
  const I32 border = splat(least);
  I32 count = splat((int32_t)0);
  for (int t = 0; t < row.tiles; t++) {
    TileSums sums;
    for (int i = 0; i < TILE; i += sums.STEP) EACH(v, sums.VECTORS) {
        const I32 bits = load_words(row.weights.data() + row.start(t) + i + v * LANES), is_kept = bits >= border;
        sums.add(v, (F32)(bits & is_kept));
        count -= is_kept;
      }
    mass.sum += sums.total();
  }
  mass.count = sum(count);
  return mass;
}

// Fills row.best with the tokens whose weights have bits in [low, high).
inline void collect(Row& row, int32_t low, int32_t high) {
  constexpr int STEP = 4 * LANES;
  row.best.clear();
  for (int from = 0; from < row.vocab; from += STEP) {
    I32 inside = splat((int32_t)0);
    EACH(v, 4) {
      const I32 bits = load_words(row.weights.data() + from + v * LANES);
      inside |= (bits >= splat(low)) & (bits < splat(high));
    }
    if (sum(inside) == 0) continue;
    for (int i = from; i < std::min(from + STEP, row.vocab); i++) {
      const int32_t bits = word_at(&row.weights[i]);
      if (bits >= low && bits < high) row.best.push_back(key_of(row.logits[i], i));
    }
  }
}

// The cut of top-p for a flat distribution: the range of weights in which the goal is reached is halved until it holds
// few tokens, and only these are sorted.
inline Cut cut_by_halving(Row& row, const Weights& weights, double goal) {
  row.weights.resize((size_t)row.tiles * TILE);
  for (int t = 0; t < row.tiles; t++) tile_weights(row, weights, {}, t, row.weights.data() + row.start(t));
  int32_t low = 0, high = ABOVE_ONE;  // weights of at least `low` reach the goal, those of at least `high` do not
  Mass above, within = {0.0, row.tiles * TILE};
  while (within.count - above.count > FEW && high - low > 1) {
    const int32_t middle = low + (high - low) / 2;
    const Mass found = mass_from(row, middle);
    if (found.sum >= goal) low = middle, within = found;
    else high = middle, above = found;
  }
  collect(row, low, high);
  std::sort(row.best.begin(), row.best.end());
  // The sum of these tokens in tiles reaches the goal; their sum in order may be below it by a rounding, and all of them stay.
  const int count = prefix(row, weights, row.best, above.sum, goal);
  return cut_at(row, count ? row.best[count - 1] : row.best.back());
}

inline Cut cut_of(Row& row, const Weights& weights, int64_t top_k, double top_p) {
  Cut cut;
  if (top_k > 0 && top_k < row.vocab) {
    find_best(row, (int)top_k);
    cut = cut_at(row, row.best.back());
    if (top_p < 1.0) {
      double mass = 0.0;
      for (const Key key : row.best) mass += weights(row.logits[token_of(key)]);
      const int count = prefix(row, weights, row.best, 0.0, top_p * mass);
      if (count) cut = cut_at(row, row.best[count - 1]);
    }
  } else if (top_p < 1.0) {
    const double goal = top_p * sum_tiles(row, weights, cut);
    find_best(row, std::min(FIRST_LOOK, row.vocab));
    const int count = prefix(row, weights, row.best, 0.0, goal);
    cut = count ? cut_at(row, row.best[count - 1]) : cut_by_halving(row, weights, goal);
  }
  return cut;
}

// XTC: of the kept tokens with at least `threshold` of the mass, only the last in rank order stays. The row's logits
// become a copy in which the others are -infinity.
inline void exclude(Row& row, const Weights& weights, const Cut& cut, double threshold) {
  alignas(64) float tile[TILE];
  const double goal = threshold * sum_tiles(row, weights, cut);
  row.best.clear();
  for (int t = 0; t < row.tiles; t++) {
    if (row.maxima[t] < cut.logit) continue;
    tile_weights(row, weights, cut, t, tile);
    for (int i = 0; i < row.size(t); i++)
      if (tile[i] > 0.0f && tile[i] >= goal) row.best.push_back(key_of(row.logits[row.start(t) + i], row.start(t) + i));
  }
  if (row.best.size() < 2) return;
  const Key last = *std::max_element(row.best.begin(), row.best.end());
  if (row.logits != row.changed.data()) row.changed.assign(row.logits, row.logits + row.vocab);
  for (const Key key : row.best)
    if (key != last) row.changed[token_of(key)] = -INF;
  row.logits = row.changed.data();
}

}  // namespace sampling
