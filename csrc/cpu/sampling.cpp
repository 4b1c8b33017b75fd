// sampling: from logits to tokens and log-probabilities, a row by one thread.
//
// Algorithm  A row is seen as tiles of 256 logits. One pass finds every tile's maximum; the n best tokens then lie in the
//            few tiles that reach the n-th largest maximum, so that selecting them hardly reads the row again. What is
//            kept of a distribution is described by a cut: the last token, in rank order, that stays. Its mass is summed
//            tile by tile (float within a tile, in one fixed tree; double from tile to tile), and a token is drawn by
//            inverting these sums in the order of token ids.
//            Rank order: higher logit first, equal logits by lower id. A row's bits depend on that row alone.
// Shapes     logits  [rows, vocab] float, rows `stride` apart; the rest is in api.h
// Tile       one row, 4 bytes a token: a row of 32,000 stays in level 2
// Floor      one read of the logits; with a temperature, one exp a token, 0.4 ns
// Achieved   one core of Zen 4, rows of 32,000: greedy 2.5 us a row, a draw 20 us, five logprobs 25 us
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "api.h"
#include "isa.h"
#include "pool.h"

namespace {

constexpr int TILE = 256;
constexpr float INF = std::numeric_limits<float>::infinity();
constexpr float LEAST_EXPONENT = -87.0f;  // below it a weight is zero
constexpr int FIRST_LOOK = 64;            // tokens among which top-p usually ends
constexpr int FEW = 256;                  // tokens that are sorted rather than halved again
constexpr int32_t ABOVE_ONE = 0x3f800001;  // the bits of the next float after 1

// A place in rank order, as an integer that ascends with it: the logit's bits turned so that they descend, then the id.
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

// One row, and what was found out about it. The vectors are scratch memory that a thread keeps.
struct Row {
  const float* logits;
  int vocab, tiles;
  float top = -INF;
  std::vector<float> maxima;   // [tiles]
  std::vector<double> sums;    // [tiles], of the weights up to and including each
  std::vector<Key> best;       // in rank order, as far as they were asked for
  std::vector<float> ordered;  // scratch of nth_maximum
  std::vector<float> weights;  // [tiles * TILE], scratch of cut_by_halving

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
bool scan(Row& row, const float* logits, int vocab) {
  row.logits = logits, row.vocab = vocab, row.tiles = (vocab + TILE - 1) / TILE, row.top = -INF;
  row.maxima.resize(row.tiles), row.sums.resize(row.tiles);
  F32 strange = splat(0.0f);  // NaN as soon as one is not finite
  for (int t = 0; t < row.tiles; t++) {
    const float* tile = logits + row.start(t);
    const int size = row.size(t);
    F32 high = splat(-INF);
    for (int i = 0; i < size; i += LANES) {
      const F32 x = get(tile + i, size - i), own = i + LANES <= size ? x : load_n(tile + i, size - i);
      high = max(x, high);
      strange += own - own;
    }
    row.maxima[t] = highest(high);
    row.top = std::max(row.top, row.maxima[t]);
  }
  return sum(strange) == 0.0f;
}

int argmax(const Row& row) {
  int t = 0;
  while (t < row.tiles - 1 && row.maxima[t] < row.top) t++;
  const float *tile = row.logits + row.start(t), *end = tile + row.size(t), *found = std::find(tile, end, row.top);
  return found == end ? 0 : (int)(found - row.logits);  // in a row of NaN there is none
}

// The n-th largest maximum of a tile: at least n tokens are as large.
float nth_maximum(Row& row, int n) {
  row.ordered.assign(row.maxima.begin(), row.maxima.end());
  std::nth_element(row.ordered.begin(), row.ordered.begin() + (n - 1), row.ordered.end(), std::greater<float>());
  return row.ordered[n - 1];
}

// Puts the n best tokens into row.best, in rank order.
void find_best(Row& row, int n) {
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

// How logits become weights: exp((logit - top) / temperature), zero if that is less than min-p of the maximum.
struct Weights {
  float top, temperature, least;

  F32 exponent(F32 x) const { return (x - splat(top)) / splat(temperature); }
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

// Weights of a tile's kept tokens, zeros elsewhere: out[TILE].
void tile_weights(const Row& row, const Weights& weights, const Cut& cut, int t, float* out) {
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

float tile_sum(const float* weights) {
  F32 sums[2] = {splat(0.0f), splat(0.0f)};
  for (int i = 0; i < TILE; i += 2 * LANES) EACH(v, 2) sums[v] += load(weights + i + v * LANES);
  return sum(sums[0] + sums[1]);
}

// Fills row.sums with the mass of what the cut keeps; returns all of it.
double sum_tiles(Row& row, const Weights& weights, const Cut& cut) {
  alignas(64) float tile[TILE];
  double total = 0.0;
  for (int t = 0; t < row.tiles; t++) {
    if (row.maxima[t] >= cut.logit) {
      tile_weights(row, weights, cut, t, tile);
      total += tile_sum(tile);
    }
    row.sums[t] = total;
  }
  return total;
}

Cut cut_at(const Row& row, Key key) { return {row.logits[token_of(key)], token_of(key)}; }

// How many of `keys`, in rank order, it takes until `mass` plus theirs reaches the goal; 0 if they never do.
int prefix(const Row& row, const Weights& weights, const std::vector<Key>& keys, double mass, double goal) {
  for (size_t i = 0; i < keys.size(); i++)
    if ((mass += weights(row.logits[token_of(keys[i])])) >= goal) return (int)i + 1;
  return 0;
}

struct Mass {
  double sum = 0.0;
  int count = 0;
};

// Of the weights that are at least `least`; they are not negative, so that they compare as their bits do.
Mass mass_from(const Row& row, int32_t least) {
  Mass mass;
  const I32 border = splat(least);
  I32 count = splat((int32_t)0);
  for (int t = 0; t < row.tiles; t++) {
    F32 sums[2] = {splat(0.0f), splat(0.0f)};
    for (int i = 0; i < TILE; i += 2 * LANES) EACH(v, 2) {
        const I32 bits = load_words(row.weights.data() + row.start(t) + i + v * LANES), is_kept = bits >= border;
        sums[v] += (F32)(bits & is_kept);
        count -= is_kept;
      }
    mass.sum += sum(sums[0] + sums[1]);
  }
  mass.count = sum(count);
  return mass;
}

// Puts the tokens whose weights have bits in [low, high) into row.best.
void collect(Row& row, int32_t low, int32_t high) {
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

// The cut of top-p where the distribution is flat: the range of weights in which the goal is reached is halved until few
// tokens are in it, and only these are put into order.
Cut cut_by_halving(Row& row, const Weights& weights, double goal) {
  row.weights.resize((size_t)row.tiles * TILE);
  for (int t = 0; t < row.tiles; t++) tile_weights(row, weights, {}, t, row.weights.data() + row.start(t));
  int32_t low = 0, high = ABOVE_ONE;  // what is from low on reaches the goal, what is from high on does not
  Mass above, within = {0.0, row.tiles * TILE};
  while (within.count - above.count > FEW && high - low > 1) {
    const int32_t middle = low + (high - low) / 2;
    const Mass found = mass_from(row, middle);
    if (found.sum >= goal) low = middle, within = found;
    else high = middle, above = found;
  }
  collect(row, low, high);
  std::sort(row.best.begin(), row.best.end());
  const int count = prefix(row, weights, row.best, above.sum, goal);
  return count ? cut_at(row, row.best[count - 1]) : Cut{};
}

Cut cut_of(Row& row, const Weights& weights, int64_t top_k, double top_p) {
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

// The token at which the mass, summed in the order of ids, first exceeds `uniform` of it.
int draw(Row& row, const Weights& weights, const Cut& cut, double uniform) {
  alignas(64) float tile[TILE];
  const double target = uniform * sum_tiles(row, weights, cut), total = row.sums.back();
  int t = 0;
  while (t < row.tiles - 1 && row.sums[t] <= target && row.sums[t] < total) t++;
  tile_weights(row, weights, cut, t, tile);
  double sum = t ? row.sums[t - 1] : 0.0;
  int last = 0;  // of positive weight, for a target that rounding put beyond the end
  for (int i = 0; i < row.size(t); i++) {
    if (tile[i] > 0.0f) last = i;
    if ((sum += tile[i]) > target) break;
  }
  return row.start(t) + last;
}

// The rank of a token, the best is 1.
int rank_of(const Row& row, int token) {
  const float value = row.logits[token];
  int rank = 1;
  for (int t = 0; t < row.tiles; t++) {
    if (row.maxima[t] < value) continue;
    const int from = row.start(t), to = from + row.size(t);
    for (int i = from; i < to; i++) rank += row.logits[i] > value || (i < token && row.logits[i] == value);
  }
  return rank;
}

void logprobs_of_row(const LogprobParams& p, Row& row, int i) {
  scan(row, p.logits + p.indices[i] * p.stride, p.vocab);
  const double total = sum_tiles(row, {row.top, 1.0f, LEAST_EXPONENT}, {});
  const double normaliser = (double)row.top + std::log(total);
  int32_t* ids = p.ids + (int64_t)i * p.width;
  float* values = p.logprobs + (int64_t)i * p.width;
  const auto put = [&](int at, int token) {
    ids[at] = token;
    values[at] = (float)((double)row.logits[token] - normaliser);
  };
  put(0, (int)p.tokens[i]);
  p.ranks[i] = rank_of(row, (int)p.tokens[i]);
  if (!p.counts[i]) return;
  find_best(row, (int)p.counts[i]);
  for (int k = 0; k < (int)row.best.size(); k++) put(1 + k, token_of(row.best[k]));
}

// Out of line: knowing whose row it is, gcc would look up the thread's memory in every inner loop.
[[gnu::noipa]] Row& scratch() {
  static thread_local Row row;
  return row;
}

}  // namespace

void scan_logits(Pool* pool, const ScanParams* p) {
  pool->run(p->rows, 1, [&](int begin, int end) {
    for (int i = begin; i < end; i++) {
      Row& row = scratch();
      p->finite[i] = scan(row, p->logits + i * p->stride, p->vocab);
      p->best[i] = argmax(row);
    }
  });
}

void draw_tokens(Pool* pool, const DrawParams* p) {
  pool->run(p->count, 1, [&](int begin, int end) {
    for (int i = begin; i < end; i++) {
      Row& row = scratch();
      scan(row, p->logits + p->indices[i] * p->stride, p->vocab);
      const int64_t r = p->rows[i];
      const Weights weights = {row.top, p->temperature[r], std::max(p->log_min_p[r], LEAST_EXPONENT)};
      p->tokens[i] = draw(row, weights, cut_of(row, weights, p->top_k[r], p->top_p[r]), p->uniform[i]);
    }
  });
}

void token_logprobs(Pool* pool, const LogprobParams* p) {
  pool->run(p->count, 1, [&](int begin, int end) {
    for (int i = begin; i < end; i++) logprobs_of_row(*p, scratch(), i);
  });
}
