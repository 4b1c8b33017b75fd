// dispatch_rows, combine_experts, add_identities, add_shared_expert: rows to their experts, and back.
//
// Algorithm  experts form EXPERT_SHARES shares of consecutive ones. A share's sum starts from 0 and takes output * weight in the
//            order of experts; y = (0 + 1) + (2 + 3), as one rank adds the segments of a product (gemm/segments.h): ranks
//            with one or two shares each, whose sums sum_parts adds, have the bits of one with all four.
// Shapes     experts/parameters.h
// Tile       one row by one thread
// Floor      each array passes through level 2 once; negligible beside the products
#include "api.h"
#include "elementwise/rows.h"
#include "elementwise/sigmoid.h"
#include "gemm/gemm.h"

namespace {

constexpr int EXPERT_SHARES = 4;

template <class Element> void dispatch_row(const DispatchParams& p, int row) {
  const Element* x = (const Element*)p.x + row * p.x_stride;
  for (int64_t i = (int64_t)row * p.top_k; i < (int64_t)(row + 1) * p.top_k; i++) {
    if (p.places[i] < 0) continue;
    Element* y = (Element*)p.y + (int64_t)p.places[i] * p.size;
    if (!p.weights) std::copy_n(x, p.size, y);
    else each_vector(p.size, [&](int at, int n) { put(y + at, get(x + at, n) * p.weights[i], n); });
  }
}

template <class Y> void combine_row(const CombineParams& p, int row) {
  Y* y = (Y*)p.y + row * p.y_stride;
  const int64_t begin = (int64_t)row * p.top_k, end = begin + p.top_k;
  each_vector(p.size, [&](int at, int n) {
    F32 sums[EXPERT_SHARES] = {};
    int s = 0;
    for (int64_t i = begin; i < end; i++) {
      if (p.places[i] < 0) continue;
      while (p.experts[i] >= share(p.num_experts, s + 1, EXPERT_SHARES)) s++;
      const F32 output = get(p.outputs + (int64_t)p.places[i] * p.size + at, n);
      sums[s] += p.weights ? output * p.weights[i] : output;
    }
    const F32* own = sums + p.first_share;
    put(y + at, p.shares == 1 ? own[0] : p.shares == 2 ? own[0] + own[1] : (own[0] + own[1]) + (own[2] + own[3]), n);
  });
}

template <class Y> void add_row(const AddSharedParams& p, int row) {
  const float *routed = p.routed + row * p.stride, *shared = p.shared + row * p.stride;
  const F32 gate = p.gates ? sigmoid(splat(p.gates[row * p.gate_stride])) : splat(1.0f);
  each_vector(p.size, [&](int at, int n) {
    put((Y*)p.y + (int64_t)row * p.size + at, get(routed + at, n) + get(shared + at, n) * gate, n);
  });
}

template <class Element> void add_inputs(const AddIdentitiesParams& p, int row) {
  const int64_t begin = (int64_t)row * p.top_k;
  float weight = 0.0f;
  for (int64_t i = begin; i < begin + p.top_k; i++)
    if (p.experts[i] >= p.num_experts) weight += p.weights[i];
  const float* routed = p.routed + row * p.stride;
  const Element* x = (const Element*)p.x + row * p.x_stride;
  Element* y = (Element*)p.y + (int64_t)row * p.size;
  each_vector(p.size, [&](int at, int n) { put(y + at, get(routed + at, n) + get(x + at, n) * weight, n); });
}

}  // namespace

void dispatch_rows(Pool* pool, const DispatchParams* p) {
  with_element(p->dtype, [&](auto x) {
    for_rows(pool, p->rows, p->size * p->top_k, [&](int row) { dispatch_row<decltype(x)>(*p, row); });
  });
}

void combine_experts(Pool* pool, const CombineParams* p) {
  with_element(p->y_dtype, [&](auto y) {
    for_rows(pool, p->rows, p->size * p->top_k, [&](int row) { combine_row<decltype(y)>(*p, row); });
  });
}

void add_identities(Pool* pool, const AddIdentitiesParams* p) {
  with_element(p->dtype, [&](auto x) {
    for_rows(pool, p->rows, p->size, [&](int row) { add_inputs<decltype(x)>(*p, row); });
  });
}

void add_shared_expert(Pool* pool, const AddSharedParams* p) {
  with_element(p->y_dtype, [&](auto y) {
    for_rows(pool, p->rows, p->size, [&](int row) { add_row<decltype(y)>(*p, row); });
  });
}
