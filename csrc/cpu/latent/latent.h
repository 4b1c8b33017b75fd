// The part of the C ABI that latent attention needs besides projections, see api.h.
//
// The cache has one row a token, [kv_rank + rope_dim]: the normalised latent, then the rotated key that all heads share; with
// an indexer its key follows, see indexer.h.
#pragma once
#include "api.h"

// Each head's part of the rows times its own weight: head h of a row begins at x + h * x_step, its product at y + h * y_step.
// No bias, no residual, one segment. products.cpp.
struct HeadGemmParams {
  GemmParams product;      // of head 0; `weight` are its panels
  int64_t weight_stride;   // bytes from a head's panels to the next one's
  int64_t x_step, y_step;  // elements
  int32_t heads;
};
API void head_gemm_bf16(Pool*, const HeadGemmParams*);
API void head_gemm_bf16_tile(Pool*, const HeadGemmParams*);
API void head_gemm_fp32(Pool*, const HeadGemmParams*);
API void head_gemm_fp16(Pool*, const HeadGemmParams*);
API void head_gemm_fp16_tile(Pool*, const HeadGemmParams*);

// Writes tokens' rows to the cache. rotate.cpp.
struct CacheLatentsParams {
  void* rows;                         // [blocks, block_size, row_dim]
  const void* latents;                // [tokens, kv_rank + rope_dim], rows `stride` apart
  const float* norm;                  // [kv_rank], the weights of an RMS norm
  const float* angles;                // [positions, rope_dim]: cosines of all pairs, then their sines
  const int64_t *positions, *slots;   // [tokens]; slot = block * block_size + offset
  int64_t stride;
  int32_t tokens, kv_rank, rope_dim;
  int32_t row_dim;  // elements of a row of the cache; without an indexer cached_dim of its elements, see attention/heads.h
  float eps;
  int32_t dtype;
};
API void cache_latents(Pool*, const CacheLatentsParams*);

// out = the last rope_dim elements of each head, rotated. rotate.cpp.
struct RotateHeadsParams {
  void* out;                 // head h of a token begins at h * out_step
  const void* query;         // its rotated part at h * query_step
  const float* angles;       // [positions, rope_dim]
  const int64_t* positions;  // [tokens]
  int64_t out_stride, query_stride, out_step, query_step;  // elements
  int32_t tokens, heads, rope_dim, dtype;
};
API void rotate_heads(Pool*, const RotateHeadsParams*);

// Attention with one KV head, whose values are the first value_dim elements of its keys. With a block size of 1 the table lists
// each key's row, and rows may be longer than keys; otherwise the block size is a multiple of 16. attention/attention.cpp.
struct LatentAttentionParams {
  AttentionParams attention;  // `values` are `keys`; `out` is [tokens, heads, value_dim]
  int32_t value_dim;
  int32_t row_dim;  // elements of a row of the cache
};
API void latent_attention_bf16(Pool*, const LatentAttentionParams*);
API void latent_attention_bf16_tile(Pool*, const LatentAttentionParams*);
API void latent_attention_fp32(Pool*, const LatentAttentionParams*);
API void latent_attention_fp16(Pool*, const LatentAttentionParams*);
