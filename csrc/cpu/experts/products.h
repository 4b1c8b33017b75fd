// Operations of api.h on the rows that were dispatched to experts. products.cpp.
#pragma once

// How the experts divide the rows and the weight of a product.
struct ExpertSlices {
  const int32_t* starts;  // [experts + 1], of the rows; an expert without rows reads nothing
  int64_t weight_stride;  // bytes from an expert's panels to the next one's
  int64_t scale_stride;   // int8: likewise of weight_scales, in elements
  int32_t experts;
};

// Each expert's rows times its own weight: x, y, scales and sums have the rows of all experts, `weight`, weight_scales and
// bias [experts, outputs] are the first expert's. No residual, one segment; the number of rows is not read.
struct ExpertGemmParams {
  GemmParams product;
  ExpertSlices slices;
};
API void expert_gemm_bf16(Pool*, const ExpertGemmParams*);
API void expert_gemm_bf16_tile(Pool*, const ExpertGemmParams*);
API void expert_gemm_fp32(Pool*, const ExpertGemmParams*);
API void expert_gemm_fp16(Pool*, const ExpertGemmParams*);

struct ExpertGemmInt8Params {
  GemmInt8Params product;
  ExpertSlices slices;
};
API void expert_gemm_int8(Pool*, const ExpertGemmInt8Params*);

struct ExpertGemmInt4Params {
  GemmInt4Params product;
  ExpertSlices slices;
};
API void expert_gemm_int4(Pool*, const ExpertGemmInt4Params*);
API void expert_gemm_int4_tile(Pool*, const ExpertGemmInt4Params*);

// quantize_rows and activate of as many rows as `count` points to.
struct CountedQuantizeParams {
  QuantizeParams quantize;
  const int32_t* count;
};
API void quantize_counted(Pool*, const CountedQuantizeParams*);

struct CountedActivateParams {
  ActivateParams activate;
  const int32_t* count;
};
API void activate_counted(Pool*, const CountedActivateParams*);
