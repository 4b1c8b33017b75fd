// factors: products of elements, of rows with gates or with numbers, and of columns with constants; and copies of rows.
//
// Algorithm  in float, one rounding
// Shapes     recurrent/factors.h
// Tile       one row by one thread
// Floor      each array passes through level 2 once
#include "recurrent/factors.h"

#include "elementwise/rows.h"
#include "elementwise/sigmoid.h"
#include "recurrent/scans/softplus.h"

// y = x * factor(gate).
template <class Factor> void gate_rows(Pool* pool, const SigmoidGateParams* p, Factor factor) {
  with_element(p->dtype, [&](auto element) {
    using Element = decltype(element);
    for_rows(pool, p->rows, p->size, [&](int64_t row) {
      const Element *x = (const Element*)p->x + row * p->x_stride, *gate = (const Element*)p->gate + row * p->gate_stride;
      Element* y = (Element*)p->y + row * p->y_stride;
      each_vector(p->size, [&](int at, int n) { put(y + at, get(x + at, n) * factor(get(gate + at, n)), n); });
    });
  });
}

void silu_gate(Pool* pool, const SigmoidGateParams* p) {
  gate_rows(pool, p, [](F32 gate) { return silu(gate); });
}

void softplus_gate(Pool* pool, const SigmoidGateParams* p) {
  gate_rows(pool, p, [](F32 gate) { return softplus(gate); });
}

void scale_columns(Pool* pool, const ScaleParams* p) {
  with_element(p->dtype, [&](auto element) {
    using Element = decltype(element);
    for_rows(pool, p->rows, p->size, [&](int64_t row) {
      const Element* x = (const Element*)p->x + row * p->x_stride;
      Element* y = (Element*)p->y + row * p->y_stride;
      each_vector(p->size, [&](int at, int n) { put(y + at, get(x + at, n) * get(p->factors + at, n), n); });
    });
  });
}

void scale_by_position(Pool* pool, const ScaleByPositionParams* p) {
  with_element(p->dtype, [&](auto element) {
    using Element = decltype(element);
    for_rows(pool, p->rows, p->size, [&](int64_t row) {
      const float factor = p->factors[p->positions[row]];
      if (factor == 1.0f) return;  // of most contexts
      Element* x = (Element*)p->x + row * p->stride;
      each_vector(p->size, [&](int at, int n) { put(x + at, get(x + at, n) * factor, n); });
    });
  });
}

void copy_rows(Pool* pool, const CopyParams* p) {
  with_element(p->dtype, [&](auto element) {
    using Element = decltype(element);
    for_rows(pool, p->rows, p->size, [&](int64_t row) {
      std::memcpy((Element*)p->y + row * p->size, (const Element*)p->x + row * p->x_stride, p->size * sizeof(Element));
    });
  });
}
