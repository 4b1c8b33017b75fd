// rotate: splits a token's projection into heads, applies norms, rotation and query scales, and writes the KV cache.
//
// Algorithm  results are computed in float and rounded once, when they are stored; sums as in rows.h
// Shapes     api.h
// Tile       one token by one thread; the caller does tiny work alone
// Floor      each array passes through level 2 once
// Achieved   one core of Zen 4, 32 rows of a model with hidden size 1024: 39 us
#include <type_traits>

#include "attention/heads.h"
#include "elementwise/rows.h"
#include "gemm/quantize.h"

namespace {

// The norm of one head: its weights, or null, and its biases, or null.
struct HeadNorm {
  const float *weight, *bias;
  HeadNorm(const float* weights, const float* biases, int64_t at)
      : weight(weights ? weights + at : nullptr), bias(biases ? biases + at : nullptr) {}
};

// One head, normalised if there is a norm, and rotated: its elements i and i + head_dim / 2 are a pair.
template <bool CENTRED, class Out, class Element>
void rotate_head(const RotateParams& p, Out* out, const Element* head, const HeadNorm& norm, const float* angles) {
  const int half = p.head_dim / 2;
  float scale = 1.0f;
  alignas(64) float means[LANES] = {};
  if (norm.weight) {
    if constexpr (CENTRED) {
      const float sum = sum_over(p.head_dim, [&](F32& to, int at, int n) { to += get(head + at, n); });
      std::fill(means, means + LANES, sum / (float)p.head_dim);
    }
    const float squares = sum_of_squares(p.head_dim, [&](int at, int n) {
      return CENTRED ? get(head + at, n) - get(means, n) : get(head + at, n);  // beyond the end: 0 - 0
    });
    scale = norm_scale(squares, p.head_dim, p.eps);
  }
  const auto normalised = [&](F32 x, int at, int n) {
    if (!norm.weight) return x;
    if constexpr (CENTRED) x = x - splat(means[0]);
    x = x * scale * get(norm.weight + at, n);
    if constexpr (CENTRED) return norm.bias ? x + get(norm.bias + at, n) : x;
    return x;
  };
  each_vector(half, [&](int at, int n) {
    const F32 low = normalised(get(head + at, n), at, n), high = normalised(get(head + half + at, n), half + at, n);
    const F32 cosine = get(angles + at, n), sine = get(angles + half + at, n);
    put(out + at, low * cosine - high * sine, n);
    put(out + half + at, high * cosine + low * sine, n);
  });
}

// One value head, scaled to a mean square of 1.
template <class Out, class Element> void normalise_value(const RotateParams& p, Out* out, const Element* head) {
  const float squares = sum_of_squares(p.head_dim, [&](int at, int n) { return get(head + at, n); });
  const float scale = norm_scale(squares, p.head_dim, p.eps);
  each_vector(p.head_dim, [&](int at, int n) { put(out + at, get(head + at, n) * scale, n); });
}

// The cache's row for a token's first key and value; the next head's row is block_size rows later.
inline int64_t cache_row(const RotateParams& p, int token) {
  const int64_t block = p.slots[token] / p.block_size, offset = p.slots[token] % p.block_size;
  return block * p.kv_heads * p.block_size + offset;
}

// Prefetches the cache lines that a token will write: they are far apart, so the hardware does not prefetch them.
void prefetch_places(const RotateParams& p, int token, int64_t row_bytes) {
  const int64_t place = cache_row(p, token) * row_bytes, step = p.block_size * row_bytes;
  for (int head = 0; head < p.kv_heads; head++)
    for (int64_t byte = 0; byte < row_bytes; byte += 64) {
      __builtin_prefetch((char*)p.keys + place + head * step + byte, 1);
      __builtin_prefetch((char*)p.values + place + head * step + byte, 1);
    }
}

template <bool CENTRED, class Element, class Stored> void rotate_token(const RotateParams& p, int token) {
  const int64_t dim = p.head_dim, row_dim = cached_dim(p.head_dim);
  prefetch_places(p, std::min(token + 1, p.tokens - 1), row_dim * (int64_t)sizeof(Stored));
  const Element* from = (const Element*)p.projected + (int64_t)token * (p.heads + 2 * p.kv_heads) * dim;
  const float* angles = p.angles + p.positions[token] * dim;
  Element* query = (Element*)p.query + (int64_t)token * p.heads * dim;
  for (int head = 0; head < p.heads; head++, from += dim) {
    const HeadNorm norm(p.query_norm, p.query_bias, (int64_t)head * p.norm_stride);
    rotate_head<CENTRED>(p, query + head * dim, from, norm, angles);
  }
  if (p.query_scales) {
    const float factor = p.query_scales[p.positions[token]];
    each_vector(p.heads * p.head_dim, [&](int at, int n) { put(query + at, get(query + at, n) * factor, n); });
  }
  for (int64_t head = 0, row = cache_row(p, token); head < p.kv_heads; head++, from += dim, row += p.block_size) {
    Stored *key = (Stored*)p.keys + row * row_dim, *value = (Stored*)p.values + row * row_dim;
    const HeadNorm norm(p.key_norm, p.key_bias, head * p.norm_stride);
    if constexpr (std::is_same_v<Stored, Element>) {
      rotate_head<CENTRED>(p, key, from, norm, angles);
      if (p.normalises_values) normalise_value(p, value, from + p.kv_heads * dim);
      else std::copy_n(from + p.kv_heads * dim, dim, value);
    } else {
      float turned[MAX_HEAD_DIM];
      int32_t sum;
      rotate_head<CENTRED>(p, turned, from, norm, angles);
      quantize_row(turned, p.head_dim, key, p.key_scales[row], sum);
      if (p.normalises_values) {
        normalise_value(p, turned, from + p.kv_heads * dim);
        quantize_row(turned, p.head_dim, value, p.value_scales[row], sum);
      } else {
        quantize_row(from + p.kv_heads * dim, p.head_dim, value, p.value_scales[row], sum);
      }
    }
    std::fill(key + dim, key + row_dim, Stored{}), std::fill(value + dim, value + row_dim, Stored{});
  }
}

template <class Element, class Stored> void rotate(Pool* pool, const RotateParams& p) {
  const auto token = p.is_centred ? rotate_token<true, Element, Stored> : rotate_token<false, Element, Stored>;
  for_rows(pool, p.tokens, (p.heads + 2 * p.kv_heads) * p.head_dim, [&](int at) { token(p, at); });
}

}  // namespace

void rotate_and_cache(Pool* pool, const RotateParams* p) {
  with_element(p->dtype, [&](auto x) {
    using Element = decltype(x);
    if constexpr (!std::is_same_v<Element, float>)
      if (p->key_scales) return rotate<Element, int8_t>(pool, *p);
    rotate<Element, Element>(pool, *p);
  });
}
