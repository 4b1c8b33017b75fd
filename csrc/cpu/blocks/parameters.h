// The part of the C ABI for weights in the blocks of GGUF files. blocks/formats.h has their panels.
#pragma once
#include "api.h"

// y = x * weight^T, then bias and residual as in GemmParams. gemm_blocks.cpp.
struct GemmBlocksParams {
  GemmParams gemm;  // weight: panels of pack_blocks; a segment has whole groups of 32 inputs, but may cut a block
  int64_t skipped;  // inputs of the first block, whole groups of 32, that are another rank's: x begins after them
  int32_t x_dtype;
};
API void gemm_q8_0(Pool*, const GemmBlocksParams*);
API void gemm_q4_0(Pool*, const GemmBlocksParams*);
API void gemm_q4_1(Pool*, const GemmBlocksParams*);
API void gemm_q5_0(Pool*, const GemmBlocksParams*);
API void gemm_q5_1(Pool*, const GemmBlocksParams*);
API void gemm_iq4_nl(Pool*, const GemmBlocksParams*);
API void gemm_iq4_xs(Pool*, const GemmBlocksParams*);
API void gemm_q2_k(Pool*, const GemmBlocksParams*);
API void gemm_q3_k(Pool*, const GemmBlocksParams*);
API void gemm_q4_k(Pool*, const GemmBlocksParams*);
API void gemm_q5_k(Pool*, const GemmBlocksParams*);
API void gemm_q6_k(Pool*, const GemmBlocksParams*);

// The same with the rows of experts, see ExpertGemmParams.
struct ExpertGemmBlocksParams {
  GemmBlocksParams product;
  ExpertSlices slices;
};
API void expert_gemm_q8_0(Pool*, const ExpertGemmBlocksParams*);
API void expert_gemm_q4_0(Pool*, const ExpertGemmBlocksParams*);
API void expert_gemm_q4_1(Pool*, const ExpertGemmBlocksParams*);
API void expert_gemm_q5_0(Pool*, const ExpertGemmBlocksParams*);
API void expert_gemm_q5_1(Pool*, const ExpertGemmBlocksParams*);
API void expert_gemm_iq4_nl(Pool*, const ExpertGemmBlocksParams*);
API void expert_gemm_iq4_xs(Pool*, const ExpertGemmBlocksParams*);
API void expert_gemm_q2_k(Pool*, const ExpertGemmBlocksParams*);
API void expert_gemm_q3_k(Pool*, const ExpertGemmBlocksParams*);
API void expert_gemm_q4_k(Pool*, const ExpertGemmBlocksParams*);
API void expert_gemm_q5_k(Pool*, const ExpertGemmBlocksParams*);
API void expert_gemm_q6_k(Pool*, const ExpertGemmBlocksParams*);

// Rows of a packed table as in embed_bf16; no scales. embed_blocks.cpp.
API void embed_q8_0(Pool*, const EmbedParams*);
API void embed_q4_0(Pool*, const EmbedParams*);
API void embed_q4_1(Pool*, const EmbedParams*);
API void embed_q5_0(Pool*, const EmbedParams*);
API void embed_q5_1(Pool*, const EmbedParams*);
API void embed_iq4_nl(Pool*, const EmbedParams*);
API void embed_iq4_xs(Pool*, const EmbedParams*);
API void embed_q2_k(Pool*, const EmbedParams*);
API void embed_q3_k(Pool*, const EmbedParams*);
API void embed_q4_k(Pool*, const EmbedParams*);
API void embed_q5_k(Pool*, const EmbedParams*);
API void embed_q6_k(Pool*, const EmbedParams*);

// Rows of a file's blocks to panels; strides are in bytes, and `element` is a BlockFormat. pack_blocks.cpp.
enum BlockFormat : int32_t {
  BLOCKS_Q8_0, BLOCKS_Q4_0, BLOCKS_Q4_1, BLOCKS_Q5_0, BLOCKS_Q5_1, BLOCKS_IQ4_NL, BLOCKS_IQ4_XS, BLOCKS_Q2_K, BLOCKS_Q3_K, BLOCKS_Q4_K, BLOCKS_Q5_K, BLOCKS_Q6_K,
};
API void pack_blocks(Pool*, const PackParams*);
