// Products of each expert's rows with its own weight, and what lies between them, on a number of rows that is data.
//
// Algorithm  expert after expert, the product of its format (gemm/) on its rows; bits are those of that product
// Shapes     experts/products.h
// Tile       that of the product; threads share one expert's panels at a time
// Floor      few rows: the weights of the experts that have rows are read once, bytes / read bandwidth
// Achieved   docs/benchmarks.md
#include <cstddef>

#include "api.h"

namespace {

size_t bytes_of(int32_t dtype) { return dtype == DTYPE_FP32 ? sizeof(float) : sizeof(uint16_t); }

GemmParams& base(GemmParams& p) { return p; }
GemmParams& base(GemmInt8Params& p) { return p.gemm; }
GemmParams& base(GemmInt4Params& p) { return p.gemm; }

// Moves what only one format has from the first expert's and row 0 to those of `expert` and `first`.
void advance(GemmParams&, int, int, const ExpertSlices&) {}
void advance(GemmInt8Params& p, int expert, int first, const ExpertSlices& slices) {
  p.x_scales += first, p.x_sums += first;
  p.weight_scales += expert * slices.scale_stride;
}
void advance(GemmInt4Params& p, int, int first, const ExpertSlices&) {
  if (p.group_sums) p.group_sums += (int64_t)first * (p.gemm.inputs / p.group_size);
}

template <class Params, class Product>
void for_experts(Pool* pool, const Params& p, size_t x_bytes, Product product) {
  const ExpertSlices& slices = p.slices;
  for (int expert = 0; expert < slices.experts; expert++) {
    const int first = slices.starts[expert], rows = slices.starts[expert + 1] - first;
    if (!rows) continue;
    auto part = p.product;
    GemmParams& gemm = base(part);
    gemm.rows = rows;
    gemm.x = (const char*)gemm.x + first * gemm.x_stride * x_bytes;
    gemm.y = (char*)gemm.y + first * gemm.y_stride * bytes_of(gemm.y_dtype);
    gemm.weight = (const char*)gemm.weight + expert * slices.weight_stride;
    if (gemm.bias) gemm.bias += (int64_t)expert * gemm.outputs;
    advance(part, expert, first, slices);
    product(pool, &part);
  }
}

}  // namespace

void expert_gemm_bf16(Pool* pool, const ExpertGemmParams* p) { for_experts(pool, *p, sizeof(uint16_t), gemm_bf16); }
void expert_gemm_bf16_tile(Pool* pool, const ExpertGemmParams* p) { for_experts(pool, *p, sizeof(uint16_t), gemm_bf16_tile); }
void expert_gemm_fp32(Pool* pool, const ExpertGemmParams* p) { for_experts(pool, *p, sizeof(float), gemm_fp32); }
void expert_gemm_fp16(Pool* pool, const ExpertGemmParams* p) { for_experts(pool, *p, sizeof(uint16_t), gemm_fp16); }
void expert_gemm_int8(Pool* pool, const ExpertGemmInt8Params* p) { for_experts(pool, *p, sizeof(int8_t), gemm_int8); }
void expert_gemm_int4(Pool* pool, const ExpertGemmInt4Params* p) { for_experts(pool, *p, sizeof(uint16_t), gemm_int4); }
void expert_gemm_int4_tile(Pool* pool, const ExpertGemmInt4Params* p) { for_experts(pool, *p, sizeof(uint16_t), gemm_int4_tile); }

void quantize_counted(Pool* pool, const CountedQuantizeParams* p) {
  QuantizeParams counted = p->quantize;
  if ((counted.rows = *p->count)) quantize_rows(pool, &counted);
}

void activate_counted(Pool* pool, const CountedActivateParams* p) {
  ActivateParams counted = p->activate;
  if ((counted.rows = *p->count)) activate(pool, &counted);
}
