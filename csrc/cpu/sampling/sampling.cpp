// sampling: from logits to tokens and log-probabilities; one thread processes a row.
//
// Algorithm  A row is seen as tiles of 256 logits. One pass finds every tile's maximum; the n best tokens then lie in the
//            few tiles that reach the n-th largest maximum, so selecting them hardly reads the row again. A cut
//            describes which tokens stay in the draw: it is the last of them in rank order. Their mass is summed tile
//            by tile (float within a tile, in two chains of 16 lanes; double from tile to tile), and a token is drawn
//            by inverting these sums in the order of token ids.
//            Rank order: higher logit first, equal logits by lower id. A row's bits depend on that row alone.
// Shapes     logits  [rows, vocab] float, rows `stride` apart; the rest is in api.h
// Tile       one row, 4 bytes per token: a row of 32,000 stays in level 2
// Floor      one read of the logits; with a temperature, one exp per token, 0.4 ns
// Achieved   one core of Zen 4, rows of 32,000: greedy 2.5 us per row, a draw 20 us, five logprobs 25 us
#include "pool.h"
#include "sampling/cut.h"

namespace {

using namespace sampling;

// The token at which the mass, summed in the order of ids, first exceeds `uniform` times the total.
int draw(Row& row, const Weights& weights, const Cut& cut, double uniform) {
  alignas(64) float tile[TILE];
  const double target = uniform * sum_tiles(row, weights, cut), total = row.sums.back();
  int t = 0;
  while (t < row.tiles - 1 && row.sums[t] <= target && row.sums[t] < total) t++;
  tile_weights(row, weights, cut, t, tile);
  double sum = t ? row.sums[t - 1] : 0.0;
  int last = 0;  // the last token of positive weight, for a target that rounding put beyond the end
  for (int i = 0; i < row.size(t); i++) {
    if (tile[i] > 0.0f) last = i;
    if ((sum += tile[i]) > target) break;
  }
  return row.start(t) + last;
}

// The rank of a token; the best has rank 1.
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

// The logarithm of a sum of weights, a normal number of at least 1, with an error below an ulp. It consists of basic
// operations, because a library's log may have other bits on another machine. With m in [sqrt(1/2), sqrt(2)) and
// s = (m - 1) / (m + 1), log(m) is 2 (s + s^3 / 3 + s^5 / 5 + ...), written so that its main part is the exact m - 1.
double natural_log(double x) {
  constexpr double LN2_HIGH = 0x1.62e42fefa38p-1, LN2_LOW = 0x1.ef35793c7673p-45;  // the first has 42 bits
  constexpr uint64_t SQRT_HALF = 0x3fe6a09e667f3bcd;
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const int64_t exponent = (int64_t)(bits - SQRT_HALF) >> 52;
  bits -= (uint64_t)exponent << 52;
  double m;
  std::memcpy(&m, &bits, sizeof m);
  const double part = m - 1.0, s = part / (2.0 + part), square = s * s;
  double series = 0.0;  // square / 3 + square^2 / 5 + ...
  for (int odd = 23; odd > 1; odd -= 2) series = (series + 1.0 / odd) * square;
  const double whole = (double)exponent;
  return whole * LN2_HIGH + (part - (s * (part - 2.0 * series) - whole * LN2_LOW));
}

void logprobs_of_row(const LogprobParams& p, Row& row, int i) {
  scan(row, p.logits + p.indices[i] * p.stride, p.vocab);
  const double total = sum_tiles(row, {row.top, 1.0f, LEAST_EXPONENT}, {});
  const double normaliser = (double)row.top + natural_log(total);
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

// Not inlined: otherwise gcc would look up the thread-local row in every inner loop.
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

void mask_logits(Pool* pool, const MaskParams* p) {
  const int words = (p->vocab + 31) / 32;
  pool->run(p->count, 1, [&](int begin, int end) {
    for (int i = begin; i < end; i++) {
      Row& row = scratch();
      float* logits = p->logits + p->indices[i] * p->stride;
      scan_masked(row, logits, p->vocab, p->masks + p->mask_of[i] * words, logits);
      p->best[i] = row.top == -INF ? -1 : argmax(row);
    }
  });
}

void draw_tokens(Pool* pool, const DrawParams* p) {
  const int words = (p->vocab + 31) / 32;
  pool->run(p->count, 1, [&](int begin, int end) {
    for (int i = begin; i < end; i++) {
      Row& row = scratch();
      const float* logits = p->logits + p->indices[i] * p->stride;
      if (p->mask_of[i] >= 0) {  // the copy stays in this core's cache
        row.changed.resize(p->vocab);
        scan_masked(row, logits, p->vocab, p->masks + p->mask_of[i] * words, row.changed.data());
      } else {
        scan(row, logits, p->vocab);
      }
      if (row.top == -INF) {
        p->tokens[i] = -1;
        continue;
      }
      const int64_t r = p->rows[i];
      const Weights weights = {row.top, p->temperature[r], std::max(p->log_min_p[r], LEAST_EXPONENT)};
      const Cut cut = cut_of(row, weights, p->top_k[r], p->top_p[r]);
      if (p->exclusions[i] <= 1.0) exclude(row, weights, cut, p->exclusions[i]);
      p->tokens[i] = draw(row, weights, cut, p->uniform[i]);
    }
  });
}

void token_logprobs(Pool* pool, const LogprobParams* p) {
  pool->run(p->count, 1, [&](int begin, int end) {
    for (int i = begin; i < end; i++) logprobs_of_row(*p, scratch(), i);
  });
}
