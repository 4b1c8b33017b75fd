// The C ABI: every exported function and the struct of parameters that it takes; those of the sampler, of experts, of
// recurrent layers and of loading weights are in separate headers. parameters.py and structs/ in workers/kernels/cpu mirror the
// structs; their sizes are checked against struct_size() when a library is loaded.
//
// Pointers are to CPU memory and are not kept. Strides are in elements. Calls are checked in Python, not here.
#pragma once
#include "experts/parameters.h"
#include "recurrent/parameters.h"
#include "sampling/parameters.h"
#include "weights/parameters.h"

// Types of elements, in fields called `dtype`.
enum Dtype : int32_t { DTYPE_BF16 = 0, DTYPE_FP32 = 1, DTYPE_FP16 = 2 };

struct PoolParams {
  const int32_t* cpus;  // [threads], see Pool
  int32_t threads;
  int32_t pin_caller;
  int32_t spin_us;
};
API Pool* pool_create(const PoolParams*);  // null: the library needs AMX, and the system does not permit it
API void pool_destroy(Pool*);
API void pool_empty_runs(Pool*, int32_t times);  // to measure fork and join

// y = x * weight^T + bias + residual, rounded once. gemm.cpp.
struct GemmParams {
  void* y;               // [rows, outputs] of y_dtype
  const void* x;         // [rows, inputs]
  const void* weight;    // packed panels, [ceil(outputs / 64)][words][64] words
  const float* bias;     // [outputs], or null
  const void* residual;  // [rows, outputs] with y's type and stride, or null; may be y itself
  int64_t x_stride, y_stride;
  int32_t rows, outputs, inputs;
  int32_t y_dtype;
  int32_t segments;      // 1, 2 or 4 equal parts of the inputs, of whole words, summed separately: segments.h
};
API void gemm_bf16(Pool*, const GemmParams*);  // x and weight bfloat16, in dot order
API void gemm_bf16_tile(Pool*, const GemmParams*);  // in tile order, see tiles.h
API void set_chunk_pieces(int32_t);  // of the products in tile order, 1 to 8: any number gives the same bits; no kernel may run
API void gemm_fp32(Pool*, const GemmParams*);  // x and weight float; y is float
API void gemm_fp16(Pool*, const GemmParams*);  // x and weight float16
API void gemm_fp16_tile(Pool*, const GemmParams*);

// Rows of activations to int8, one scale per row: x = codes * scale, codes in -127..127. gemm/int8.cpp.
struct QuantizeParams {
  int8_t* codes;   // [rows, codes_stride], zeros from `inputs` to the next multiple of 16
  float* scales;   // [rows]; NaN for a row that contains a NaN or an infinity
  int32_t* sums;   // [rows], of the codes
  const void* x;   // [rows, inputs] of x_dtype
  int64_t x_stride, codes_stride;
  int32_t rows, inputs;
  int32_t x_dtype;
};
API void quantize_rows(Pool*, const QuantizeParams*);

// y = (codes * weight^T) * scales, then bias and residual as in GemmParams. gemm/int8.cpp.
struct GemmInt8Params {
  GemmParams gemm;             // x: codes of quantize_rows; weight: words of four unsigned bytes, each code + 128
  const float* x_scales;       // [rows, segments]: each segment of a row was quantized separately
  const int32_t* x_sums;       // [rows, segments]
  const float* weight_scales;  // [outputs]
};
API void gemm_int8(Pool*, const GemmInt8Params*);
API void gemm_int8_tile(Pool*, const GemmInt8Params*);  // the same bits; with AMX, gemm_int8 is this

// y = x * dequantized(weight)^T, then bias and residual as in GemmParams. gemm/int4/int4.cpp has the layout of the weight.
struct GemmInt4Params {
  GemmParams gemm;          // inputs a multiple of 8
  float* group_sums;        // [rows, groups] scratch memory, or null: no zero points, code 8 stands for zero
  const float* units;       // [panels, 64], of the stored scales of each output
  int32_t group_size;       // a multiple of 8 that divides the inputs of a segment
  int32_t x_dtype;          // bfloat16 or float16
};
API void gemm_int4(Pool*, const GemmInt4Params*);
API void gemm_int4_tile(Pool*, const GemmInt4Params*);  // in tile order

// y = the sum of several ranks' products + bias, rounded once. sum_parts.cpp.
struct SumPartsParams {
  void* y;             // [rows, size] of y_dtype
  const float* parts;  // [count, rows, size]
  const float* bias;   // [size], or null
  int32_t count, rows, size;
  int32_t y_dtype;
};
API void sum_parts(Pool*, const SumPartsParams*);

// Rows of a packed table in their original order, times a number. elementwise/embed.cpp.
struct EmbedParams {
  void* y;              // [rows, inputs] of y_dtype
  const int64_t* ids;   // [rows]; an id outside of the table gives zeros
  const void* table;    // a packed weight [outputs, inputs]
  const float* scales;  // [outputs], for int8 only
  int64_t y_stride;
  int32_t rows, outputs, inputs, y_dtype;
  float multiplier;
};
API void embed_bf16(Pool*, const EmbedParams*);
API void embed_fp32(Pool*, const EmbedParams*);
API void embed_fp16(Pool*, const EmbedParams*);
API void embed_int8(Pool*, const EmbedParams*);

// Operations between the products, of elementwise/. All arrays are contiguous, of `dtype` where they are void.

// out = norm(hidden += multiplier * delta): each row minus its mean if centred, scaled to a mean square of 1, times weight,
// plus bias.
struct NormParams {
  void* out;            // [rows, size], rows `out_stride` apart; may be `hidden`
  void* hidden;         // [rows, size], rows `hidden_stride` apart; overwritten if there is a delta
  const void* delta;    // [rows, size], or null
  const float *weight, *bias;  // [size]; bias may be null
  int64_t hidden_stride, out_stride;
  int32_t rows, size;
  float eps, multiplier;
  int32_t is_centred, dtype;
};
API void norm(Pool*, const NormParams*);

// out = activation(x), or, gated, activation(gate) * up
struct ActivateParams {
  void* out;      // [rows, size]
  const void* x;  // [rows, size]; gated: [rows, 2 * size], gate then up; with `up` the gates alone
  const void* up;     // gated: [rows, size], rows `up_stride` apart; or null: in x
  int64_t up_stride;
  int32_t rows, size;
  int32_t kind;   // 0: silu, 1: gelu by tanh, 2: gelu, 3: relu, 4: relu squared; see elementwise/elementwise.cpp for
                  // 5, gated: clamped, and 6, without a gate: xielu
  int32_t is_gated, dtype;
  float slope, limit;  // clamped; of xielu alpha_p and alpha_n
};
API void activate(Pool*, const ActivateParams*);

#include "experts/products.h"

// Clips x to -limit..limit; NaN stays NaN.
struct ClipParams {
  void* x;  // [rows, size]
  int32_t rows, size;
  float limit;
  int32_t dtype;
};
API void clip(Pool*, const ClipParams*);

// x = cap * tanh(x / cap), for rows `stride` apart
struct CapParams {
  float* x;  // [rows, columns]
  int64_t stride;
  int32_t rows, columns;
  float cap;
};
API void cap_logits(Pool*, const CapParams*);

// Splits projected tokens: queries and keys are normalised per head, if there are norms, and rotated by the angles of
// their positions; keys and values go to their slots of the paged cache. Norms are as in NormParams.
struct RotateParams {
  void* query;                                   // [tokens, heads, head_dim]
  const void* projected;                         // [tokens, heads + 2 * kv_heads, head_dim]: queries, keys, values
  const float *query_norm, *key_norm;            // weights: [head_dim] of all heads, or [heads, head_dim]; or null
  const float *query_bias, *key_bias;            // likewise; only if centred
  const float* angles;                           // [positions, head_dim]: cosines of all pairs, then their sines
  const float* query_scales;                     // [positions], factors of rotated and rounded queries; or null
  const int64_t *positions, *slots;              // [tokens]; slot = block * block_size + offset
  void *keys, *values;                           // [blocks, kv_heads, block_size, cached_dim], see heads.h
  float *key_scales, *value_scales;              // [blocks, kv_heads, block_size]: keys and values are int8; or null
  int32_t tokens, heads, kv_heads, head_dim, block_size;  // kv_heads 0: queries alone, nothing is written to the cache
  int32_t norm_stride;                           // from a head's norm weights to the next head's: 0 or head_dim
  float eps;
  int32_t is_centred;
  int32_t normalises_values;                     // each value head is scaled to a mean square of 1
  int32_t dtype;
};
API void rotate_and_cache(Pool*, const RotateParams*);

// Attention of every token over the keys of its request in the paged cache, up to its own, included. attention.cpp.
struct AttentionParams {
  void* out;                    // [tokens, heads, head_dim], the kernel's type; head h reads KV head h / group
  const void* query;            // the same
  const void *keys, *values;    // [num_blocks, kv_heads, block_size, cached_dim], see heads.h
  const float *key_scales, *value_scales;  // [num_blocks, kv_heads, block_size], of codes
  const int32_t* block_tables;  // [rows, table_stride]; entries past a row's last block are not read
  const int32_t* row_starts;    // [rows + 1]; row r owns tokens row_starts[r]..row_starts[r + 1]
  const int32_t* kv_lens;       // [rows], this step's tokens included
  const float* slopes;          // [heads], ALiBi: a score gains slope * (key - position); or null
  const float* bias;            // [heads, 2 * bias_reach + 1]: a score gains that of key - position + bias_reach; or null
  const float* pairs;           // [tokens, heads, pairs_stride]: a score gains that of its key's position; or null. Excludes bias
  const float* sinks;           // [heads], each one more score, of a key without a value, added to the total last; or null
  int64_t out_stride, query_stride;  // from a token to the next
  int64_t pairs_stride;         // a multiple of 128, and no less than any row's keys
  int32_t rows, table_stride;
  int32_t kv_heads, group, head_dim, block_size;  // head_dim: at most 1024; block_size: a multiple of 16
  int32_t window;               // positions that a token attends to, itself included; 0: all
  int32_t attention_chunk;      // a token attends to keys from its last multiple on; 0: off. Excludes a window
  int32_t is_bidirectional;     // a token also attends to later keys; excludes both
  int32_t bias_reach;           // distances beyond it have the bias of the nearest end
  float scale;                  // of the scores
  float cap;                    // scores become cap * tanh(score / cap); 0: off
};
API void attention_bf16(Pool*, const AttentionParams*);
API void attention_bf16_tile(Pool*, const AttentionParams*);  // in tile order, see attention/tile_order.h
API void attention_int8_tile(Pool*, const AttentionParams*);
API void attention_fp32(Pool*, const AttentionParams*);
API void attention_fp16(Pool*, const AttentionParams*);
API void attention_int8(Pool*, const AttentionParams*);  // keys and values are codes; query and out are bfloat16
API void attention_int8_fp16(Pool*, const AttentionParams*);  // the same; query and out are float16

// Runs kernels one after another. program.cpp.
struct KernelCall {
  void (*kernel)(Pool*, const void*);  // one of the functions above
  const void* params;                  // its struct
};
struct ProgramParams {
  const KernelCall* calls;  // [count]
  int32_t count;
};
API void run_program(Pool*, const ProgramParams*);

// The library's instruction set, and the machine's. library.cpp.
API const char* isa_name();        // "amx", "avx512", "avx512fma", "avx2", "neon_dotprod", "neon" or "portable"
API const char* machine_isa();     // the best of them for this processor
API int32_t dot_is_fma();          // 1 if pairs of bfloat16 are added as on other machines, else 0: dot_check.cpp
API int32_t struct_size(const char* name);  // of one of the structs above; -1 if the name is unknown

// The machine's limits. limits.cpp.
API int32_t read_memory(Pool*, const void*, int64_t bytes);         // exclusive or of the words of whole MB
// format 0 bf16, 1 fp32, 2 int8; 3 bf16 and 4 int8 by tiles; returns the number of operations
API int64_t peak_operations(Pool*, int32_t format, int64_t steps);
API int64_t product_operations(int64_t times);                      // of bfloat16, by the caller; returns their number
