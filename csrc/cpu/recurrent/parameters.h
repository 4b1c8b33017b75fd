// The part of the C ABI that recurrent layers need, see api.h.
//
// A layer's state after a position is in the paged cache: block i of a row holds the state after the row's last computed
// position among [i * block_size, (i + 1) * block_size). A token at position p starts from the state in block
// (p - 1) / block_size, at position 0 from zeros, and its state goes to block p / block_size. A full block is therefore a
// checkpoint, from which another row may start. Positions from stored_lens on are drafts: they start from the state before
// them, too, but the states after them are not stored.
#pragma once
#include "exports.h"

// The rows of a step, and the states of one layer.
struct StateRows {
  const int32_t* row_starts;    // [rows + 1]; row r owns tokens row_starts[r]..row_starts[r + 1]
  const int32_t* kv_lens;       // [rows], positions after the step; 0: padding, which reads and writes nothing
  const int32_t* stored_lens;   // [rows], positions after which states are stored; null: all of kv_lens
  const int32_t* block_tables;  // [rows, table_stride]; entries before the first token's source are not read
  void* states;                 // the layer's state in block 0
  int64_t block_stride;         // bytes from a block to the next
  int32_t rows, table_stride, block_size;
};

// y[t] = silu(bias + sum over j of weight[j] * u[t - width + 1 + j]) * y_factors[t], where u = x * x_factors, rounded. The
// state is the last width - 1 of u, [width - 1, channels] of `dtype`, the oldest first. causal_conv.cpp.
struct CausalConvParams {
  StateRows rows;
  void* y;                        // [tokens, channels] of `dtype`, rows y_stride apart
  const void* x;                  // [tokens, channels], rows x_stride apart
  const void *x_factors, *y_factors;  // the same, with x's stride; or null: ones
  const float* weight;            // [width, channels]
  const float* bias;              // [channels], or null
  int64_t x_stride, y_stride;
  int32_t channels, width;        // width: 2 to 8
  int32_t activates, dtype;       // without `activates`, no silu
};
API void causal_conv(Pool*, const CausalConvParams*);
