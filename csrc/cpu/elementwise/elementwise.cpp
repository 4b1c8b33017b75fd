// elementwise: operations between the matrix products: norms, activations, clipping. Rotation is in rotate.cpp.
//
// Algorithm  results are computed in float and rounded once, when they are stored; sums as in rows.h
// Shapes     api.h
// Tile       one row by one thread; the caller does tiny work alone
// Floor      each array passes through level 2 once: about 5 us for 32 rows; the products take milliseconds
// Achieved   one core of Zen 4, 32 rows of a model with hidden size 1024: norm 10 us, gate 50 us
#include "api.h"
#include "elementwise/rows.h"
#include "elementwise/sigmoid.h"

namespace {

enum { SILU, GELU_TANH, GELU, RELU, RELU_SQUARED, CLAMPED, XIELU };  // ActivateParams::kind
constexpr float GELU_SLOPE = 0.79788456f;  // sqrt(2 / pi)

// The normal distribution's cumulative probability at x, with an error below 1e-7 (Abramowitz and Stegun, 7.1.26).
inline F32 normal_distribution(F32 x) {
  const F32 z = abs(x) * 0.70710678f, t = 1.0f / (1.0f + 0.3275911f * z);
  F32 series = splat(1.061405429f);
  for (float c : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f}) series = fma(series, t, splat(c));
  const F32 beyond = 0.5f * series * t * exp(-(z * z));
  return x < splat(0.0f) ? beyond : 1.0f - beyond;
}

template <class Element> void norm_row(const NormParams& p, int row) {
  Element *hidden = (Element*)p.hidden + row * p.hidden_stride, *out = (Element*)p.out + row * p.out_stride;
  if (p.delta) {
    const Element* delta = (const Element*)p.delta + (int64_t)row * p.size;
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

// activation(x) * by. The two activations of silu's form divide last, which saves one rounding.
inline F32 activated(int kind, F32 x, F32 by) {
  switch (kind) {
    case SILU: return times_sigmoid(x * by, x);
    case GELU_TANH: return times_sigmoid(x * by, 2.0f * GELU_SLOPE * (x + 0.044715f * x * x * x));
    case GELU: return x * by * normal_distribution(x);
    case RELU: return max(splat(0.0f), x) * by;  // in this order a NaN stays a NaN
    default: {
      const F32 positive = max(splat(0.0f), x);
      return positive * positive * by;
    }
  }
}

// gate * sigmoid(slope * gate) * (up + 1), of a gate of at most `limit` and an up between -limit and limit (gpt-oss).
inline F32 clamped(F32 gate, F32 up, float slope, float limit) {
  gate = min(splat(limit), gate), up = min(splat(limit), max(splat(-limit), up));  // in this order a NaN stays one
  return times_sigmoid(gate * (up + 1.0f), slope * gate);
}

// alpha_p * x * x + x / 2 above 0, alpha_n * (exp(x) - 1 - x) + x / 2 below; near 0 by a series, as the difference cancels.
inline F32 xielu(F32 x, float alpha_p, float alpha_n) {
  const F32 below = min(splat(0.0f), x);  // in this order a NaN stays a NaN
  F32 series = splat(1.0f / 720);
  for (float c : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f}) series = fma(series, below, splat(c));
  const F32 beyond = below > splat(-0.25f) ? series * below * below : exp(below) - 1.0f - below;
  return fma(x, splat(0.5f), x > splat(0.0f) ? alpha_p * x * x : alpha_n * beyond);
}

template <class Element> void activate_row(const ActivateParams& p, int row) {
  const Element* x = (const Element*)p.x + (int64_t)row * p.size * (p.is_gated && !p.up ? 2 : 1);
  const Element* up = p.up ? (const Element*)p.up + row * p.up_stride : x + p.size;
  Element* out = (Element*)p.out + (int64_t)row * p.size;
  each_vector(p.size, [&](int at, int n) {
    const F32 by = p.is_gated ? get(up + at, n) : splat(1.0f);
    const F32 gate = get(x + at, n);
    switch (p.kind) {
      case CLAMPED: return put(out + at, clamped(gate, by, p.slope, p.limit), n);
      case XIELU: return put(out + at, xielu(gate, p.slope, p.limit), n);
      default: put(out + at, activated(p.kind, gate, by), n);
    }
  });
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

void clip(Pool* pool, const ClipParams* p) {
  with_element(p->dtype, [&](auto element) {
    using Element = decltype(element);
    for_rows(pool, p->rows, p->size, [&](int row) {
      Element* x = (Element*)p->x + (int64_t)row * p->size;
      each_vector(p->size, [&](int at, int n) {  // in this order a NaN stays a NaN
        put(x + at, min(splat(p->limit), max(splat(-p->limit), get(x + at, n))), n);
      });
    });
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
