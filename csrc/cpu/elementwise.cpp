// elementwise: what lies between the matrix products: norms, activations, rotation, writing the KV cache.
//
// Algorithm  everything is computed in float and rounded once, where it is stored. The sums of a row are taken in
//            SUMS times 16 lanes that are added in one fixed tree, so its bits depend on the row alone
// Shapes     api.h
// Tile       one row (norm, activation) or one token (rotation) by one thread; tiny work stays with the caller
// Floor      each array passes through level 2 once: at 32 rows some 5 us, beside the products' milliseconds
// Achieved   one core of Zen 4, 32 rows of a model with hidden size 1024: norm 10 us, gate 50 us, rotation 39 us
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "attention/heads.h"
#include "pool.h"
#include "gemm/quantize.h"

namespace {

constexpr int SUMS = 4;               // accumulators of a sum: as many as hide the latency of an addition
constexpr int FEWEST_ELEMENTS = 8192;  // worth another thread: about the time of a fork and join
constexpr int ITEMS_PER_THREAD = 4;

enum { SILU, GELU_TANH, GELU, RELU };  // ActivateParams::kind
constexpr float GELU_SLOPE = 0.79788456f;  // sqrt(2 / pi)

// Of x, the share of the normal distribution that lies below it: error below 1e-7 (Abramowitz and Stegun, 7.1.26).
inline F32 normal_distribution(F32 x) {
  const F32 z = abs(x) * 0.70710678f, t = 1.0f / (1.0f + 0.3275911f * z);
  F32 series = splat(1.061405429f);
  for (float c : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f}) series = fma(series, t, splat(c));
  const F32 beyond = 0.5f * series * t * exp(-(z * z));
  return x < splat(0.0f) ? beyond : 1.0f - beyond;
}

// Calls body(at, n) for [0, size) in steps of at most LANES.
template <class Body> inline void each_vector(int size, Body body) {
  int at = 0;
  for (; at + LANES <= size; at += LANES) body(at, LANES);
  if (at < size) body(at, size - at);
}

// Shares `rows` rows of `size` elements among the threads.
template <class Body> void for_rows(Pool* pool, int rows, int size, Body body) {
  const int worthwhile = (FEWEST_ELEMENTS + size - 1) / size, parts = ITEMS_PER_THREAD * pool->size();
  pool->run(rows, std::max(worthwhile, (rows + parts - 1) / parts), [&](int begin, int end) {
    for (int row = begin; row < end; row++) body(row);
  });
}

// A sum of `size` elements: add(to, at, n) adds those of [at, at + n).
template <class Add> inline float sum_over(int size, Add add) {
  Wide sums[SUMS];
  int at = 0;
  for (; at + SUMS * WIDE <= size; at += SUMS * WIDE)
    EACH(s, SUMS) EACH(v, WIDE_VECTORS) add(sums[s].part[v], at + s * WIDE + v * LANES, LANES);
  for (; at + WIDE <= size; at += WIDE) EACH(v, WIDE_VECTORS) add(sums[0].part[v], at + v * LANES, LANES);
  EACH(v, WIDE_VECTORS) {
    const int from = at + v * LANES;
    if (from < size) add(sums[0].part[v], from, std::min(LANES, size - from));
  }
  EACH(v, WIDE_VECTORS) sums[0].part[v] = (sums[0].part[v] + sums[1].part[v]) + (sums[2].part[v] + sums[3].part[v]);
  return sum(sums[0]);
}

// The sum of squares of what value(at, n) gives over [0, size).
template <class Value> inline float sum_of_squares(int size, Value value) {
  return sum_over(size, [&](F32& to, int at, int n) {
    const F32 x = value(at, n);
    to = fma(x, x, to);
  });
}

inline float norm_scale(float squares, int size, float eps) { return 1.0f / std::sqrt(squares / (float)size + eps); }

template <class Element> void norm_row(const NormParams& p, int row) {
  const int64_t start = (int64_t)row * p.size;
  Element *hidden = (Element*)p.hidden + start, *out = (Element*)p.out + start;
  if (p.delta) {
    const Element* delta = (const Element*)p.delta + start;
    each_vector(p.size, [&](int at, int n) { put(hidden + at, get(hidden + at, n) + get(delta + at, n) * p.multiplier, n); });
  }
  alignas(64) float means[LANES] = {};
  if (p.is_centred) {
    const float sum = sum_over(p.size, [&](F32& to, int at, int n) { to += get(hidden + at, n); });
    std::fill(means, means + LANES, sum / (float)p.size);
  }
  const auto value = [&](int at, int n) { return get(hidden + at, n) - get(means, n); };  // beyond the end: 0 - 0
  const float scale = norm_scale(sum_of_squares(p.size, value), p.size, p.eps);
  each_vector(p.size, [&](int at, int n) {
    const F32 scaled = value(at, n) * scale * get(p.weight + at, n);
    put(out + at, p.bias ? scaled + get(p.bias + at, n) : scaled, n);
  });
}

// What an activation makes of x times `by`. The two of silu's form are divided last, which rounds once less.
inline F32 activated(int kind, F32 x, F32 by) {
  switch (kind) {
    case SILU: return x * by / (1.0f + exp(-x));
    case GELU_TANH: return x * by / (1.0f + exp(-2.0f * GELU_SLOPE * (x + 0.044715f * x * x * x)));
    case GELU: return x * by * normal_distribution(x);
    default: return max(splat(0.0f), x) * by;  // in this order a NaN stays one
  }
}

template <class Element> void activate_row(const ActivateParams& p, int row) {
  const Element* x = (const Element*)p.x + (int64_t)row * p.size * (p.is_gated ? 2 : 1);
  Element* out = (Element*)p.out + (int64_t)row * p.size;
  each_vector(p.size, [&](int at, int n) {
    const F32 by = p.is_gated ? get(x + p.size + at, n) : splat(1.0f);
    put(out + at, activated(p.kind, get(x + at, n), by), n);
  });
}

// One head, normalised if there is a norm, and turned: its element i and i + head_dim / 2 are a pair.
template <class Out, class Element>
void rotate_head(const RotateParams& p, Out* out, const Element* head, const float* norm, const float* angles) {
  const int half = p.head_dim / 2;
  float scale = 1.0f;
  if (norm) {
    const float squares = sum_of_squares(p.head_dim, [&](int at, int n) { return get(head + at, n); });
    scale = norm_scale(squares, p.head_dim, p.eps);
  }
  each_vector(half, [&](int at, int n) {
    F32 low = get(head + at, n), high = get(head + half + at, n);
    if (norm) low = low * scale * get(norm + at, n), high = high * scale * get(norm + half + at, n);
    const F32 cosine = get(angles + at, n), sine = get(angles + half + at, n);
    put(out + at, low * cosine - high * sine, n);
    put(out + half + at, high * cosine + low * sine, n);
  });
}

// The cache's row for a token's first key and value; the next head's lies block_size rows on.
inline int64_t cache_row(const RotateParams& p, int token) {
  const int64_t block = p.slots[token] / p.block_size, offset = p.slots[token] % p.block_size;
  return block * p.kv_heads * p.block_size + offset;
}

// Asks for the cache lines that a token will write: they lie far apart, and nothing else brings them near.
void prefetch_places(const RotateParams& p, int token, int64_t row_bytes) {
  const int64_t place = cache_row(p, token) * row_bytes, step = p.block_size * row_bytes;
  for (int head = 0; head < p.kv_heads; head++)
    for (int64_t byte = 0; byte < row_bytes; byte += 64) {
      __builtin_prefetch((char*)p.keys + place + head * step + byte, 1);
      __builtin_prefetch((char*)p.values + place + head * step + byte, 1);
    }
}

template <class Element, class Stored> void rotate_token(const RotateParams& p, int token) {
  const int64_t dim = p.head_dim, row_dim = cached_dim(p.head_dim);
  prefetch_places(p, std::min(token + 1, p.tokens - 1), row_dim * (int64_t)sizeof(Stored));
  const Element* from = (const Element*)p.projected + (int64_t)token * (p.heads + 2 * p.kv_heads) * dim;
  const float* angles = p.angles + p.positions[token] * dim;
  Element* query = (Element*)p.query + (int64_t)token * p.heads * dim;
  for (int head = 0; head < p.heads; head++, from += dim)
    rotate_head(p, query + head * dim, from, p.query_norm, angles);
  for (int64_t head = 0, row = cache_row(p, token); head < p.kv_heads; head++, from += dim, row += p.block_size) {
    Stored *key = (Stored*)p.keys + row * row_dim, *value = (Stored*)p.values + row * row_dim;
    if constexpr (std::is_same_v<Stored, Element>) {
      rotate_head(p, key, from, p.key_norm, angles);
      std::copy_n(from + p.kv_heads * dim, dim, value);
    } else {
      float turned[MAX_HEAD_DIM];
      int32_t sum;
      rotate_head(p, turned, from, p.key_norm, angles);
      quantize_row(turned, p.head_dim, key, p.key_scales[row], sum);
      quantize_row(from + p.kv_heads * dim, p.head_dim, value, p.value_scales[row], sum);
    }
    std::fill(key + dim, key + row_dim, Stored{}), std::fill(value + dim, value + row_dim, Stored{});
  }
}

template <class Element, class Stored> void rotate(Pool* pool, const RotateParams& p) {
  for_rows(pool, p.tokens, (p.heads + 2 * p.kv_heads) * p.head_dim,
           [&](int token) { rotate_token<Element, Stored>(p, token); });
}

}  // namespace

void norm(Pool* pool, const NormParams* p) {
  with_element(p->dtype, [&](auto x) {
    for_rows(pool, p->rows, p->size, [&](int row) { norm_row<decltype(x)>(*p, row); });
  });
}

void activate(Pool* pool, const ActivateParams* p) {
  with_element(p->dtype, [&](auto x) {
    for_rows(pool, p->rows, p->size, [&](int row) { activate_row<decltype(x)>(*p, row); });
  });
}

void cap_logits(Pool* pool, const CapParams* p) {
  const int pieces = (p->columns + FEWEST_ELEMENTS - 1) / FEWEST_ELEMENTS;
  const float before = 2 * LOG2E / p->cap;
  pool->run(p->rows * pieces, 1, [&](int begin, int end) {
    for (int i = begin; i < end; i++) {
      const int first = i % pieces * FEWEST_ELEMENTS;
      float* x = p->x + i / pieces * p->stride + first;
      each_vector(std::min(FEWEST_ELEMENTS, p->columns - first),
                  [&](int at, int n) { put(x + at, capped(get(x + at, n) * before, p->cap), n); });
    }
  });
}

void rotate_and_cache(Pool* pool, const RotateParams* p) {
  with_element(p->dtype, [&](auto x) {
    using Element = decltype(x);
    if constexpr (!std::is_same_v<Element, float>)
      if (p->key_scales) return rotate<Element, int8_t>(pool, *p);
    rotate<Element, Element>(pool, *p);
  });
}
