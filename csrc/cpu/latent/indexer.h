// The part of the C ABI that sparse attention needs: an indexer chooses the cached tokens that a token attends to (DeepSeek-V3.2,
// arXiv 2512.02556, 2.1).
//
// The indexer's key of a token lies in the token's row of the cache, after its latent and its rotated key.
#pragma once
#include "exports.h"

// Writes tokens' index keys to the cache; the first rope_dim elements are rotated. indexer.cpp.
struct CacheIndexKeysParams {
  void* rows;                        // [slots], row_dim apart: the index key of each
  const void* keys;                  // [tokens, index_dim], rows `stride` apart
  const float* angles;               // [positions, rope_dim]: cosines of all pairs, then their sines
  const int64_t *positions, *slots;  // [tokens]
  int64_t stride;
  int32_t row_dim;                   // elements
  int32_t tokens, index_dim, rope_dim, dtype;
};
API void cache_index_keys(Pool*, const CacheIndexKeysParams*);

// Chooses for each token the top_k positions with the highest scores up to its own, of equal ones the lower; all of them, if they
// are no more. select.cpp.
//
// The result is what attention reads as requests: consecutive tokens of a request that have no more than top_k positions are one
// of its requests, each other token is one. Requests of attention that remain are empty.
struct SelectKeysParams {
  int32_t* tables;            // [tokens, top_k], the slots of a request of attention, in order of positions
  int32_t* row_starts;        // [tokens + 1]
  int32_t* kv_lens;           // [tokens], their number
  const void* query;          // [tokens, heads, index_dim], rotated; tokens query_stride apart
  const float* weights;       // [tokens, heads], rows weights_stride apart
  const void* rows;           // [slots], row_dim apart: the index key of each
  const int32_t *block_tables, *request_starts, *request_lens;  // of the step's requests, as in AttentionParams
  int64_t query_stride, weights_stride;
  int32_t row_dim;            // elements
  int32_t tokens, requests, table_stride, block_size, heads, index_dim, top_k;
  float scale;                // of a product of a query and a key
  float weights_scale;
  int32_t dtype;
};
API void select_keys(Pool*, const SelectKeysParams*);
