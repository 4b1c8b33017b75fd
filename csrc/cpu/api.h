// The whole C ABI: every exported function, with the one struct of parameters it takes. workers/kernels/cpu.py mirrors
// the structs and checks their sizes against struct_size() when it loads a library.
//
// Pointers are to CPU memory and are not kept. Strides are in elements. Calls are checked in Python, not here.
#pragma once
#include <cstdint>

#define API extern "C" __attribute__((visibility("default")))

class Pool;

struct PoolParams {
  const int32_t* cpus;  // [threads], see Pool
  int32_t threads;
  int32_t pin_caller;
  int32_t spin_us;
};
API Pool* pool_create(const PoolParams*);
API void pool_destroy(Pool*);
API void pool_empty_runs(Pool*, int32_t times);  // to measure fork and join

// y = x * weight^T + bias + residual, rounded once. gemm.cpp.
struct GemmParams {
  void* y;               // [rows, outputs], bfloat16 or float, see y_is_float
  const void* x;         // [rows, inputs]
  const void* weight;    // packed panels, [ceil(outputs / 64)][words][64] words
  const float* bias;     // [outputs], or null
  const void* residual;  // [rows, outputs] with y's type and stride, or null; may be y itself
  int64_t x_stride, y_stride;
  int32_t rows, outputs, inputs;
  int32_t y_is_float;
};
API void gemm_bf16(Pool*, const GemmParams*);  // x and weight bfloat16
API void gemm_fp32(Pool*, const GemmParams*);  // x and weight float; y is float

// What this library is, and what the machine could run. library.cpp.
API const char* isa_name();        // "avx512", "avx2" or "portable"
API const char* machine_isa();     // the best of them for this processor
API int32_t struct_size(const char* name);  // of one of the structs above, or -1
