// The part of the C ABI that mixtures of experts need besides products and activations, see api.h.
//
// A token is computed by `top_k` of the experts. A rank holds experts [first_expert, first_expert + held_experts). Rows of
// tokens are dispatched to places: the rows of one expert lie side by side, in the order of the tokens, and experts follow
// one another. starts[e] is the first place of the rank's expert e; starts[held_experts], how many places are in use, is
// data: kernels that need it read it.
#pragma once
#include "exports.h"

// Logits of the router to experts, weights and places. route.cpp.
struct RouteParams {
  const float* logits;      // [rows, experts], rows `stride` apart
  const float* correction;  // [experts], added to scores to choose experts, not to weigh them; or null
  const float* factors;     // [experts], of their weights at the end; or null
  int32_t* experts;         // [rows, top_k], ascending
  float* weights;           // [rows, top_k]
  int32_t* places;          // [rows, top_k]; -1 for an expert of another rank
  int32_t* starts;          // [held_experts + 1]
  int64_t stride;
  int32_t rows, num_experts, top_k;
  int32_t groups, top_groups;  // experts are chosen from the `top_groups` best groups, see route.cpp
  int32_t first_expert, held_experts;
  int32_t score;            // 0: softmax of all logits; 1: of the chosen ones; 2: sigmoid; 3: sparse mixer, see route.cpp
  int32_t renormalises;     // weights are divided by their sum
  float scale;              // of the weights, at the end
  float jitter;             // sparse mixer
};
API void route_experts(Pool*, const RouteParams*);

// Rows of tokens to their places, times their weights if there are any. combine.cpp.
struct DispatchParams {
  void* y;                // [places, size] of `dtype`
  const void* x;          // [rows, size], rows `x_stride` apart
  const int32_t* places;  // [rows, top_k]
  const float* weights;   // [rows, top_k], or null
  int64_t x_stride;
  int32_t rows, size, top_k, dtype;
};
API void dispatch_rows(Pool*, const DispatchParams*);

// y = for each token the sum of its experts' outputs times their weights. combine.cpp has the order.
struct CombineParams {
  void* y;                 // [rows, size] of y_dtype, rows `y_stride` apart
  const float* outputs;    // [places, size]
  const int32_t* experts;  // [rows, top_k], ascending
  const int32_t* places;   // [rows, top_k]
  const float* weights;    // [rows, top_k], or null: 1
  int64_t y_stride;
  int32_t rows, size, top_k, num_experts;
  int32_t first_share, shares;  // this rank's of the four: 1, 2 or 4 of them
  int32_t y_dtype;
};
API void combine_experts(Pool*, const CombineParams*);

// y = routed + x * the sum of the weights of the row's experts from `num_experts` on, whose outputs are their inputs;
// rounded once. combine.cpp.
struct AddIdentitiesParams {
  void* y;                 // [rows, size]
  const float* routed;     // [rows, size], rows `stride` apart: the sum of the other experts
  const void* x;           // [rows, size], rows `x_stride` apart
  const int32_t* experts;  // [rows, top_k], ascending
  const float* weights;    // [rows, top_k]
  int64_t stride, x_stride;
  int32_t rows, size, top_k, num_experts, dtype;
};
API void add_identities(Pool*, const AddIdentitiesParams*);

// y = routed + sigmoid(gate) * shared, rounded once. combine.cpp.
struct AddSharedParams {
  void* y;                       // [rows, size] of y_dtype
  const float *routed, *shared;  // [rows, size], rows `stride` apart
  const float* gates;            // [rows], `gate_stride` apart; or null: no gate, instead of its sigmoid 1
  int64_t stride, gate_stride;
  int32_t rows, size, y_dtype;
};
API void add_shared_expert(Pool*, const AddSharedParams*);
