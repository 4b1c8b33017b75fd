// The part of the C ABI that recurrent layers need besides causal_conv: scans and their gated norm. States are as in
// recurrent/parameters.h, in float, in columns of LANES_OF_COLUMN elements, zero-padded. A step's tensors are of `dtype`.
#pragma once
#include "api.h"

constexpr int LANES_OF_COLUMN = 16;  // outputs whose states lie side by side, whatever the size of a vector

// Mamba 2: state[n] = exp(dt * a) * state[n] + dt * x * b[n]; y = sum over n of state[n] * c[n] + d * x, for each element of a
// head, where dt = softplus(dt + dt_bias), limited. State: [heads, columns of head_dim, state_size, 16]. scans/mamba2_scan.cpp.
struct Mamba2ScanParams {
  StateRows rows;
  void* y;                           // [tokens, heads, head_dim], tokens y_stride apart
  const void* x;                     // [tokens, heads, head_dim], tokens x_stride apart
  const void *b, *c;                 // [tokens, groups, state_size], likewise; head h reads group h / (heads / groups)
  const void* dt;                    // [tokens, heads], tokens dt_stride apart
  const float *a, *d, *dt_bias;      // [heads]
  int64_t y_stride, x_stride, dt_stride;
  int32_t heads, head_dim, groups;
  int32_t state_size;                // a multiple of 8
  float least_dt, greatest_dt;
  int32_t dtype;
};
API void mamba2_scan(Pool*, const Mamba2ScanParams*);

// Mamba 1: state[n] = exp(dt * a[n]) * state[n] + dt * x * b[n]; y = sum over n of state[n] * c[n] + d * x, for each channel,
// where dt = softplus(dt + dt_bias). State: [columns of channels, state_size, 16]. scans/mamba1_scan.cpp.
struct Mamba1ScanParams {
  StateRows rows;
  void* y;                           // [tokens, channels], tokens y_stride apart
  const void *x, *dt;                // likewise, x_stride and dt_stride
  const void *b, *c;                 // [tokens, state_size], tokens b_stride apart
  const float* a;                    // as the state, times log2(e)
  const float *d, *dt_bias;          // [channels]
  int64_t y_stride, x_stride, dt_stride, b_stride;
  int32_t channels;
  int32_t state_size;                // a multiple of 8
  int32_t dtype;
};
API void mamba1_scan(Pool*, const Mamba1ScanParams*);

// Three parts of a row, each normalised to a mean square of 1, times weight; or without weights copied. norm_parts.cpp.
struct NormPartsParams {
  void* y;                           // [rows, steps + 2 * state_size], rows y_stride apart
  const void* x;                     // likewise, x_stride
  const float* weight;               // [steps + 2 * state_size], or null
  int64_t y_stride, x_stride;
  int32_t rows, steps, state_size;   // the parts have `steps`, state_size and state_size elements
  float eps;
  int32_t dtype;
};
API void norm_parts(Pool*, const NormPartsParams*);

// Gated delta net: state = g * state; state[k] += key[k] * beta * (value - sum over k of key[k] * state[k]); y = sum over k of
// query[k] * state[k], for each element of a value; g = exp(a * softplus(alpha + dt_bias)), or with a lower bound
// exp(lower_bound * sigmoid(-a * (alpha + dt_bias))); beta = max_beta * sigmoid(b); queries and keys are normalised, queries
// scaled. State: [heads, columns of value_dim, key_dim, 16]. scans/gated_delta.cpp.
struct GatedDeltaParams {
  StateRows rows;
  void* y;                           // [tokens, heads, value_dim], tokens y_stride apart
  const void *query, *key;           // [tokens, key_heads, key_dim], tokens x_stride apart
  const void* value;                 // [tokens, heads, value_dim], likewise; head h reads key head h / (heads / key_heads)
  const void* b;                     // [tokens, heads], tokens b_stride apart
  const void* alpha;                 // [tokens, heads, decays], tokens alpha_stride apart
  const float* a;                    // [heads]
  const float* dt_bias;              // [heads, decays]
  int64_t y_stride, x_stride, b_stride, alpha_stride;
  int32_t heads, key_heads, decays;  // decays of a head: 1, or key_dim, one for each k
  int32_t key_dim, value_dim;        // key_dim: a multiple of 4
  float scale, eps, max_beta;        // of queries; of the norms: x / sqrt(sum of squares + eps); of beta
  float lower_bound;                 // of the logarithm of g; 0: none
  int32_t dtype;
};
API void gated_delta(Pool*, const GatedDeltaParams*);

// y = norm(x * silu(gate)) * weight, or norm(x) * weight * silu(gate); each group of a row is normalised alone. gated_norm.cpp.
struct GatedNormParams {
  void* y;                           // [rows, size], rows y_stride apart
  const void *x, *gate;              // likewise, x_stride and gate_stride
  const float* weight;               // [size]
  int64_t y_stride, x_stride, gate_stride;
  int32_t rows, size, group_size;
  int32_t gates_last;                // after the norm
  int32_t sigmoid_gates;             // gates_last: sigmoid(gate) instead of silu(gate)
  float eps;
  int32_t dtype;
};
API void gated_norm(Pool*, const GatedNormParams*);

// y = x * sigmoid(gate): the outputs of gated attention. gated_norm.cpp.
struct SigmoidGateParams {
  void* y;                           // [rows, size], rows y_stride apart
  const void *x, *gate;              // likewise, x_stride and gate_stride
  int64_t y_stride, x_stride, gate_stride;
  int32_t rows, size, dtype;
};
API void sigmoid_gate(Pool*, const SigmoidGateParams*);
