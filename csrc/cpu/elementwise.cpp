// elementwise: what lies between the matrix products: norms, the gate, rotation, writing the KV cache.
//
// Algorithm  everything is computed in float and rounded once, where it is stored. A row's sum of squares is taken in
//            SUMS times 16 lanes that are added in one fixed tree, so its bits depend on the row alone
// Shapes     api.h
// Tile       one row (norm, gate) or one token (rotation) by one thread; tiny work stays with the caller
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

// The sum of squares of what value(at, n) gives over [0, size).
template <class Value> inline float sum_of_squares(int size, Value value) {
  Wide sums[SUMS];
  const auto add = [&](F32& to, int at, int n) {
    const F32 x = value(at, n);
    to = fma(x, x, to);
  };
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

inline float norm_scale(float squares, int size, float eps) { return 1.0f / std::sqrt(squares / (float)size + eps); }

template <class Element> void norm_row(const NormParams& p, int row) {
  const int64_t start = (int64_t)row * p.size;
  Element *hidden = (Element*)p.hidden + start, *out = (Element*)p.out + start;
  if (p.delta) {
    const Element* delta = (const Element*)p.delta + start;
    each_vector(p.size, [&](int at, int n) { put(hidden + at, get(hidden + at, n) + get(delta + at, n), n); });
  }
  const auto value = [&](int at, int n) { return get(hidden + at, n); };
  const float scale = norm_scale(sum_of_squares(p.size, value), p.size, p.eps);
  each_vector(p.size, [&](int at, int n) { put(out + at, value(at, n) * scale * get(p.weight + at, n), n); });
}

template <class Element> void silu_mul_row(const SiluMulParams& p, int row) {
  const Element *gate = (const Element*)p.gate_up + (int64_t)row * 2 * p.size, *up = gate + p.size;
  Element* out = (Element*)p.out + (int64_t)row * p.size;
  each_vector(p.size, [&](int at, int n) {
    const F32 g = get(gate + at, n);
    put(out + at, g * get(up + at, n) / (1.0f + exp(-g)), n);
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

void rms_norm(Pool* pool, const NormParams* p) {
  with_element(p->dtype, [&](auto x) {
    for_rows(pool, p->rows, p->size, [&](int row) { norm_row<decltype(x)>(*p, row); });
  });
}

void silu_mul(Pool* pool, const SiluMulParams* p) {
  with_element(p->dtype, [&](auto x) {
    for_rows(pool, p->rows, p->size, [&](int row) { silu_mul_row<decltype(x)>(*p, row); });
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
