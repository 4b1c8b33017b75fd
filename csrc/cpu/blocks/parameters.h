// The part of the C ABI for weights in the blocks of GGUF files. formats.h and grid_formats.h have their panels.
#pragma once
#include "api.h"

// DO(Format, name) for each format, in the order of BlockFormat.
#define EACH_BLOCK_FORMAT(DO)                                                                                                   \
  DO(Q8_0, q8_0) DO(Q4_0, q4_0) DO(Q4_1, q4_1) DO(Q5_0, q5_0) DO(Q5_1, q5_1) DO(IQ4_NL, iq4_nl) DO(IQ4_XS, iq4_xs)             \
  DO(Q2_K, q2_k) DO(Q3_K, q3_k) DO(Q4_K, q4_k) DO(Q5_K, q5_k) DO(Q6_K, q6_k)                                                   \
  DO(IQ2_XXS, iq2_xxs) DO(IQ2_XS, iq2_xs) DO(IQ2_S, iq2_s) DO(IQ3_XXS, iq3_xxs) DO(IQ3_S, iq3_s) DO(IQ1_S, iq1_s) DO(IQ1_M, iq1_m) \
  DO(TQ1_0, tq1_0) DO(TQ2_0, tq2_0)

// y = x * weight^T, then bias and residual as in GemmParams. gemm_blocks.cpp.
struct GemmBlocksParams {
  GemmParams gemm;  // weight: panels of pack_blocks; a segment has whole groups of 32 inputs, but may cut a block
  int64_t skipped;  // inputs of the first block, whole groups of 32, that are another rank's: x begins after them
  int32_t x_dtype;
};
#define DECLARE(Format, name) API void gemm_##name(Pool*, const GemmBlocksParams*);
EACH_BLOCK_FORMAT(DECLARE)
#undef DECLARE

// The same with the rows of experts, see ExpertGemmParams.
struct ExpertGemmBlocksParams {
  GemmBlocksParams product;
  ExpertSlices slices;
};
#define DECLARE(Format, name) API void expert_gemm_##name(Pool*, const ExpertGemmBlocksParams*);
EACH_BLOCK_FORMAT(DECLARE)
#undef DECLARE

// Rows of a packed table as in embed_bf16; no scales. embed_blocks.cpp.
#define DECLARE(Format, name) API void embed_##name(Pool*, const EmbedParams*);
EACH_BLOCK_FORMAT(DECLARE)
#undef DECLARE

// Rows of a file's blocks to panels; strides are in bytes, and `element` is a BlockFormat. pack_blocks.cpp.
struct PackBlocksParams {
  PackParams pack;
  const uint8_t* grid;  // of the formats of grid_formats.h: [points, 8 or 4], numbers by their place in ascending order
};
#define NUMBER(Format, name) BLOCKS_##Format,
enum BlockFormat : int32_t { EACH_BLOCK_FORMAT(NUMBER) };
#undef NUMBER
API void pack_blocks(Pool*, const PackBlocksParams*);
API int64_t panel_block_bytes(int32_t format);  // bytes of the blocks of a panel's outputs
