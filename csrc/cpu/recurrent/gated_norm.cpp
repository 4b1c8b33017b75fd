// gated_norm: the norm at the end of a recurrent layer, with a gate before or after it; and a gate without a norm.
//
// Algorithm  x * silu(gate) in float, or x alone, is scaled to a mean square of 1 in each group, times weight, times silu(gate)
//            or sigmoid(gate) if that comes last; one rounding. Sums as in elementwise/rows.h
// Shapes     recurrent/scans.h
// Tile       one group of one row by one thread
// Floor      each array passes through level 2 once
// Achieved   one core of Zen 4, 2048 elements: 1.2 us a row
#include "arena.h"
#include "elementwise/rows.h"
#include "elementwise/sigmoid.h"
#include "recurrent/scans.h"

namespace {

enum class Gate { SILU_FIRST, SILU_LAST, SIGMOID_LAST };

template <Gate GATE, class Element> void norm_group(const GatedNormParams& p, int64_t row, int64_t first) {
  constexpr bool GATES_LAST = GATE != Gate::SILU_FIRST;
  const Element* x = (const Element*)p.x + row * p.x_stride + first;
  const Element* gate = (const Element*)p.gate + row * p.gate_stride + first;
  Element* y = (Element*)p.y + row * p.y_stride + first;
  float* gated = nullptr;
  if constexpr (!GATES_LAST) {  // not in the sum, whose accumulators silu would spill
    thread_local Arena arena;
    gated = (float*)arena.reserve(p.group_size * sizeof(float));
    each_vector(p.group_size, [&](int at, int n) { put(gated + at, get(x + at, n) * silu(get(gate + at, n)), n); });
  }
  const auto value = [&](int at, int n) { return GATES_LAST ? get(x + at, n) : get(gated + at, n); };
  const float scale = norm_scale(sum_of_squares(p.group_size, value), p.group_size, p.eps);
  each_vector(p.group_size, [&](int at, int n) {
    const F32 normed = value(at, n) * scale * get(p.weight + first + at, n);
    if constexpr (GATE == Gate::SIGMOID_LAST)
      put(y + at, times_sigmoid(normed, get(gate + at, n)), n);
    else
      put(y + at, GATES_LAST ? normed * silu(get(gate + at, n)) : normed, n);
  });
}

}  // namespace

void gated_norm(Pool* pool, const GatedNormParams* p) {
  const int groups = p->size / p->group_size;
  with_element(p->dtype, [&](auto x) {
    using Element = decltype(x);
    auto norm = p->gates_last ? norm_group<Gate::SILU_LAST, Element> : norm_group<Gate::SILU_FIRST, Element>;
    if (p->sigmoid_gates) norm = norm_group<Gate::SIGMOID_LAST, Element>;
    for_rows(pool, p->rows * groups, p->group_size, [&](int i) {
      norm(*p, i / groups, (int64_t)(i % groups) * p->group_size);
    });
  });
}

void sigmoid_gate(Pool* pool, const SigmoidGateParams* p) {
  with_element(p->dtype, [&](auto element) {
    using Element = decltype(element);
    for_rows(pool, p->rows, p->size, [&](int64_t row) {
      const Element *x = (const Element*)p->x + row * p->x_stride, *gate = (const Element*)p->gate + row * p->gate_stride;
      Element* y = (Element*)p->y + row * p->y_stride;
      each_vector(p->size, [&](int at, int n) { put(y + at, times_sigmoid(get(x + at, n), get(gate + at, n)), n); });
    });
  });
}
