// The part of the C ABI that recurrent layers need: products of elements, and copies; and latent attention's factors of rows.
// factors.cpp.
#pragma once
#include "recurrent/scans.h"

// y = x * silu(gate), with the parameters of sigmoid_gate: the outputs of a scan without a norm.
API void silu_gate(Pool*, const SigmoidGateParams*);

// y = x * softplus(gate), likewise: the outputs of attention with such gates.
API void softplus_gate(Pool*, const SigmoidGateParams*);

// y = x * factors, a number for each column; y may be x.
struct ScaleParams {
  void* y;               // [rows, size], rows y_stride apart
  const void* x;         // likewise, x_stride
  const float* factors;  // [size]
  int64_t y_stride, x_stride;
  int32_t rows, size, dtype;
};
API void scale_columns(Pool*, const ScaleParams*);

// x = x * the factor of the row's position.
struct ScaleByPositionParams {
  void* x;                   // [rows, size], rows `stride` apart
  const float* factors;      // [positions]
  const int64_t* positions;  // [rows]
  int64_t stride;
  int32_t rows, size, dtype;
};
API void scale_by_position(Pool*, const ScaleByPositionParams*);

// y = x: the inputs of drafts, which are read again if the drafts are accepted.
struct CopyParams {
  void* y;                     // [rows, size], contiguous
  const void* x;               // [rows, size], rows x_stride apart
  int64_t x_stride;
  int32_t rows, size, dtype;
};
API void copy_rows(Pool*, const CopyParams*);
