// Operations of api.h on the rows that were dispatched to experts.
#pragma once

// How the experts divide the rows of a product.
struct ExpertSlices {
  const int32_t* starts;  // [experts + 1]; the weight of an expert without rows is not read
  int32_t experts;
};

// Each expert's rows times its own weight: x, y, scales and sums have the rows of all experts, the panels of experts follow
// one another in `weight`, and weight_scales have 64 for each. `outputs` are those of one expert, bias is
// [experts, outputs]. No residual, one segment; the number of rows is not read. gemm/.
struct ExpertGemmParams {
  GemmParams product;
  ExpertSlices slices;
};
API void expert_gemm_bf16(Pool*, const ExpertGemmParams*);
API void expert_gemm_bf16_tile(Pool*, const ExpertGemmParams*);
API void expert_gemm_fp32(Pool*, const ExpertGemmParams*);
API void expert_gemm_fp16(Pool*, const ExpertGemmParams*);
API void expert_gemm_fp16_tile(Pool*, const ExpertGemmParams*);

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

// quantize_rows and activate of as many rows as `count` points to. counted.cpp.
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
